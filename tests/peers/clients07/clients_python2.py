# ruff: noqa
"""Clients of Kafka 0.7 for Python 2, driven line by line; tests/support/foreign/clients07.py has the other end.

Arguments: where brod 0.3.2 is, where brod 0.4.3 is, and where pykafka, samsa and kazoo are. A line is a
request as JSON, and so is each answer. Python 2.7, by whatever implementation: three things that Jython lacks
are put in their place.
"""

from __future__ import print_function

import json
import os
import platform
import socket
import struct
import sys

HOST = "127.0.0.1"
PATIENCE_SECONDS = 10


class InheritableStruct(object):
    """What samsa and kazoo use of `struct.Struct`."""

    def __init__(self, form):
        self.format, self.size = form, struct.calcsize(form)

    def pack(self, *values):
        return struct.pack(self.format, *values)

    def pack_into(self, target, offset, *values):
        target[offset : offset + self.size] = struct.pack(self.format, *values)

    def unpack(self, data):
        return struct.unpack(self.format, data)

    def unpack_from(self, data, offset=0):
        return struct.unpack_from(self.format, data, offset)


def socket_pair():
    """What kazoo wakes its thread by."""
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen(1)
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    for end in (one, other):
        end.setblocking(False)
    return one, other


def read(self, length):
    """pykafka's, which receives into a part of a buffer."""
    data = b""
    while len(data) < length:
        more = self.socket.recv(length - len(data))
        if not more:
            raise IOError("the broker has closed the connection")
        data += more
    return data


IS_JYTHON = platform.python_implementation() == "Jython"
if IS_JYTHON:
    struct.Struct = InheritableStruct
    socket.socketpair = socket_pair


def imported(path, module, package):
    """The module from one directory, whichever of the same name was imported before."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    sys.path.insert(0, path)
    try:
        __import__(module)
        return sys.modules[module]
    finally:
        sys.path.remove(path)


class Brod(object):
    def __init__(self, path):
        self._brod = imported(path, "brod", "brod")

    def produce(self, port, topic, partition, payloads):
        kafka = self._brod.Kafka(HOST, port)
        kafka.produce(topic, payloads, partition)
        kafka._disconnect()

    def fetch(self, port, topic, partition, offset, size):
        kafka = self._brod.Kafka(HOST, port)
        found = kafka.fetch(topic, offset, partition, size)
        kafka._disconnect()
        # As its own MessageSet has it, of which brod.Kafka does not make one.
        last, payload = found[-1] if found else (offset, None)
        following = last if payload is None else last + len(payload) + self._brod.Lengths.MESSAGE_HEADER
        return [payload for _, payload in found], following

    def offsets(self, port, topic, partition, time, count):
        kafka = self._brod.Kafka(HOST, port)
        found = kafka.offsets(topic, time, count, partition)
        kafka._disconnect()
        return found


class Pykafka(object):
    def __init__(self):
        import kafka

        self._kafka = kafka
        if IS_JYTHON:
            kafka.io.IO.read = read

    def produce(self, port, topic, partition, payloads):
        producer = self._kafka.producer.Producer(topic, partition, HOST, port)
        producer.send([self._kafka.message.Message(payload) for payload in payloads])
        producer.disconnect()

    def fetch(self, port, topic, partition, offset, size):
        consumer = self._kafka.consumer.Consumer(topic, partition, HOST, port)
        consumer.offset, consumer.max_size = offset, size
        found = consumer.consume()
        consumer.disconnect()
        return [message.payload for message in found], consumer.offset


class Samsa(object):
    """With the wire alone, and in groups, whose members are told apart by a name of the test's."""

    def __init__(self):
        import samsa.client
        import samsa.cluster
        import samsa.handlers

        self._samsa = samsa
        self._members = {}

    def _client(self, port):
        handler = self._samsa.handlers.ThreadingHandler()
        return self._samsa.client.Client(HOST, handler, port=port, timeout=PATIENCE_SECONDS)

    def produce(self, port, topic, partition, payloads, magic=0):
        client = self._client(port)
        client.produce(topic, partition, payloads, version=magic)
        client.disconnect()

    def multiproduce(self, port, sets):
        client = self._client(port)
        client.multiproduce([(str(topic), number, map(unhex, payloads)) for topic, number, payloads in sets])
        client.disconnect()

    def fetch(self, port, topic, partition, offset, size):
        client = self._client(port)
        found = client.fetch(topic, partition, offset, size)
        client.disconnect()
        return [str(m.payload) for m in found], found[-1].next_offset if found else offset

    def multifetch(self, port, fetches):
        client = self._client(port)
        found = client.multifetch([(str(topic), number, at, size) for topic, number, at, size in fetches])
        sets = [[str(m.payload).encode("hex") for m in one] for one in found]
        client.disconnect()
        return {"sets": sets}

    def offsets(self, port, topic, partition, time, count):
        client = self._client(port)
        found = client.offsets(topic, partition, time, count)
        client.disconnect()
        return found

    def _cluster(self, zookeeper):
        from kazoo.client import KazooClient

        session = KazooClient(hosts=zookeeper)
        session.start(PATIENCE_SECONDS)
        return session, self._samsa.cluster.Cluster(session)

    def cluster(self, zookeeper, topic):
        session, cluster = self._cluster(zookeeper)
        brokers = dict((str(number), [b.host, b.port]) for number, b in cluster.brokers.items())
        partitions = sorted([p.broker.id, p.number] for p in cluster.topics[topic].partitions)
        session.stop()
        return {"brokers": brokers, "partitions": partitions}

    def publish(self, zookeeper, topic, payloads):
        """Each to a partition that samsa picks."""
        session, cluster = self._cluster(zookeeper)
        for payload in payloads:
            cluster.topics[topic].publish(payload)
        for broker in cluster.brokers.values():
            broker.client.disconnect()
        session.stop()
        return {}

    def join(self, zookeeper, topic, group, member):
        session, cluster = self._cluster(zookeeper)
        consumer = cluster.topics[topic].subscribe(group, backoff_increment=0.1)
        self._members[member] = session, consumer
        return {"id": consumer.id}

    def owned(self, member):
        partitions = list(self._members[member][1].partitions)
        return {"partitions": sorted([p.broker.id, p.number] for p in partitions)}

    def take(self, member, count):
        found = []
        while len(found) < count:
            payload = self._members[member][1].next_message(timeout=PATIENCE_SECONDS)
            if payload is None:
                break
            found.append(str(payload).encode("hex"))
        return {"payloads": found}

    def commit(self, member):
        self._members[member][1].commit_offsets()
        return {}

    def leave(self, member):
        session, consumer = self._members.pop(member)
        consumer.stop_partitions()
        session.stop()
        return {}


def unhex(text):
    return str(text).decode("hex")


def answer(client, request):
    arguments = dict((str(name), value) for name, value in request.items())
    do = str(arguments.pop("do"))
    for name in ("topic", "zookeeper", "group", "member"):
        if name in arguments:
            arguments[name] = str(arguments[name])
    if "payloads" in arguments:
        arguments["payloads"] = map(unhex, arguments["payloads"])
    found = getattr(client, do)(**arguments)
    if do == "fetch":
        payloads, following = found
        return {"payloads": [payload.encode("hex") for payload in payloads], "next": following}
    if do == "offsets":
        return {"offsets": list(found)}
    return found or {}


def main():
    brod_before, brod_last = sys.argv[1:3]
    sys.path[:0] = sys.argv[3:]
    lines, sys.stdout = sys.stdout, sys.stderr
    clients = {
        "brod 0.3.2": Brod(brod_before),
        "brod 0.4.3": Brod(brod_last),
        "pykafka": Pykafka(),
        "samsa": Samsa(),
    }
    while True:
        line = sys.stdin.readline()
        if not line:
            break
        request = json.loads(line)
        try:
            told = answer(clients[request.pop("client")], request)
        except Exception as e:
            told = {"error": "%s: %s" % (type(e).__name__, e)}
        lines.write(json.dumps(told) + "\n")
        lines.flush()
    # Threads of samsa and kazoo may be anywhere.
    os._exit(0)


main()
