"""The package's functions stay functions, whatever is imported below it."""

from __future__ import annotations

import pkgutil

from pyspark_kafkalog import decoding


def test_no_module_is_named_as_a_function() -> None:
    # Importing a module makes it an attribute of its package: a function of that name would be gone.
    assert {module.name for module in pkgutil.iter_modules(decoding.__path__)} & set(
        decoding.__all__
    ) == set()
