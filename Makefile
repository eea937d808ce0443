# `make` prints what there is. Everything runs in .venv, which the first target that needs it creates.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# .ci/run sets PYTEST_STATUSES, to know how each circle ended.
PYTEST := $(if $(PYTEST_STATUSES),.ci/pytest,$(BIN)/pytest)
# Spark starts its workers with PYSPARK_PYTHON, or with whatever python3 is first on PATH.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
# Container images like to forbid byte code caches; each of the processes that tests start would compile anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-07 demo-duckdb test test-all test-unit test-spark test-interop test-fault coverage kerberos chromium prometheus interop soak dist matrix lint format bench notebooks docs site clean

help:  ## Print the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(STAMP): pyproject.toml
	@echo "setting up $(VENV) with $$($(PYTHON) --version): PySpark, this package and what its tests need, from PyPI: a minute or two, once"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade pip
	@$(BIN)/pip install --quiet --editable '.[spark,fast,demo,sql,notebooks,test,lint]'
	@touch $@

install: $(STAMP)  ## Create .venv and install everything the other targets need

demo: $(STAMP)  ## The main job: real events into the bundled broker, out of it with Spark
	@$(BIN)/python examples/flight_delays.py

demo-07: $(STAMP)  ## The same the first generation's way: ZooKeeper, two brokers, the 0.7 wire
	@$(BIN)/python examples/flight_delays_07.py

demo-duckdb: $(STAMP)  ## Real events into the bundled broker, out of it with DuckDB, without Spark
	@$(BIN)/python examples/flight_duckdb.py

# Two of the three circles that need PyPI only; the third is `soak`. See tests/README.md.
SUITES = $(addprefix tests/,unit property broker spark interop fault notebooks)
CORE = --hypothesis-profile few -m "not long and not soak and not clusters"
ALL = -m "not soak and not clusters"
# A group of tests stays in one process: see tests/conftest.py.
PROCESSES = --dist loadscope --no-loadscope-reorder -n

test: $(STAMP)  ## What proves the product on a fresh machine: six minutes
	@$(PYTEST) $(PROCESSES) 3 $(CORE) $(SUITES)

test-all: $(STAMP)  ## That, fault drivers, notebooks and all else that needs only PyPI: a quarter of an hour
	@$(PYTEST) $(PROCESSES) 6 $(ALL) $(SUITES)

test-unit: $(STAMP)  ## Of test-all: unit and property tests
	@$(PYTEST) $(PROCESSES) 2 $(ALL) tests/unit tests/property

test-spark: $(STAMP)  ## Of test-all: the tests that need a Spark session
	@$(PYTEST) $(ALL) tests/spark

test-interop: $(STAMP)  ## Of test-all: our broker, and foreign clients at it
	@$(PYTEST) $(PROCESSES) 2 $(ALL) tests/broker tests/interop

test-fault: $(STAMP)  ## Of test-all: kills, torn writes, full disks
	@$(PYTEST) $(PROCESSES) 2 $(ALL) tests/fault

coverage: $(STAMP)  ## Branch coverage of make test-all, child processes included; CIRCLE=test: of make test
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PROCESSES) 4 --timeout 1200 $(if $(filter test,$(CIRCLE)),$(CORE),$(ALL)) $(SUITES) || echo "tests failed; the coverage is that of all that ran"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=cover

kerberos: $(STAMP)  ## Debian's Kerberos server and the package gssapi, for the tests of make interop: as root
	@apt-get install -y -qq --no-install-recommends krb5-kdc krb5-admin-server libkrb5-dev gcc >/dev/null
	@$(BIN)/pip install --quiet --editable '.[kerberos]'

chromium:  ## Debian's Chromium, for the tests of the status page in make interop: as root
	@apt-get install -y -qq --no-install-recommends chromium >/dev/null

prometheus:  ## Debian's Prometheus, which reads our metrics in make interop: as root
	@apt-get install -y -qq --no-install-recommends prometheus >/dev/null

interop: $(STAMP)  ## Apache Kafka itself, its old clients, those of 0.7 and Spark's connector as judges: fetched, or skipped
	@$(BIN)/python -m tests.support.foreign.apache_kafka
	@$(BIN)/python -m tests.support.foreign.kafka_connect
	@$(BIN)/python -m tests.support.foreign.clients07
	@$(BIN)/python -m tests.support.foreign.old_java
	@$(BIN)/python -m tests.support.foreign.old_kafka
	@$(BIN)/python -m tests.support.foreign.object_stores
	@$(BIN)/python -m tests.support.foreign.processes
	@$(BIN)/python -m tests.support.foreign.mini_hdfs
	@$(BIN)/python -m tests.support.foreign.duckdb_tables
	@$(BIN)/python -m tests.support.foreign.recipe_environments
	@$(BIN)/python -m tests.support.spark.spark_environments
	@$(PYTEST) $(PROCESSES) 3 tests/peers tests/spark -m "(peers or clusters) and not soak"

soak: $(STAMP)  ## The long rounds of the fault drivers, and 2,000 random examples of each property
	@$(PYTEST) tests -m soak --timeout 3600
	@$(PYTEST) $(PROCESSES) 2 tests/unit tests/property -m "not soak" --hypothesis-profile many --timeout 3600

RELEASE := $(VENV)/.release
$(RELEASE): $(STAMP)
	@$(BIN)/pip install --quiet --editable '.[release]'
	@touch $@

dist: $(RELEASE)  ## Build sdist and wheel, check them, and try the wheel in fresh environments
	@$(BIN)/python -m tests.support.installation.dist

matrix: $(RELEASE)  ## The wheel with the lowest and newest packages, on each Python and PySpark; writes docs/install.md
	@$(BIN)/python -m tests.support.installation.matrix

lint: $(STAMP)  ## ruff, mypy --strict, the import contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP)  ## Let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)  ## Measure against named peers and write benchmarks/results and docs/benchmarks.md
	@$(BIN)/python -m benchmarks

notebooks: $(STAMP)  ## Execute the notebooks and keep what they print and draw
	@$(BIN)/python -m notebooks.execute

docs: $(STAMP)  ## Write the parts of docs/ that are generated from the code
	@$(BIN)/python -m docs.generate

site: $(STAMP)  ## The documentation as pages with search, in site/
	@$(BIN)/python -m docs.site

clean:  ## Remove .venv and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* .import_linter_cache
