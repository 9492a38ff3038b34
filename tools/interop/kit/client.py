"""A blocking remoting client: one connection, one request at a time. One per thread."""
import socket
import struct
import time

from . import codec, store

SUCCESS = 0
PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY = 19, 20
QUERY_NOT_FOUND = 22
# A message of 4 MiB has to come through a machine that runs several JVMs at once.
TIMEOUT_SECONDS = 20


class Refused(RuntimeError):
    """The broker answered, but not with what was asked for."""


class Client:
    def __init__(self, address, timeout=TIMEOUT_SECONDS):
        host, port = address.rsplit(':', 1)
        self.address, self.opaque = address, 0
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, code, ext=None, body=b''):
        """(header, body) of the answer, whatever its code. Requests that the broker sends are passed over."""
        self.opaque += 1
        self.socket.sendall(codec.encode(code, self.opaque, ext or {}, body))
        while True:
            length, = struct.unpack('>I', self._exactly(4))
            header, answer = codec.decode(self._exactly(length))
            if header.get('opaque') == self.opaque and header.get('flag', 0) & 1:
                return header, answer

    def _exactly(self, size):
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise ConnectionError(f'{self.address} closed the connection')
            parts += part
        return bytes(parts)

    def expect(self, code, ext=None, body=b''):
        """(ext fields, body) of an answer that must be SUCCESS."""
        header, answer = self.call(code, ext, body)
        if header.get('code', 0) != SUCCESS:
            raise Refused(f'{self.address} answers request {code} with {header.get("code")}: {header.get("remark")}')
        return header.get('extFields') or {}, answer

    def runtime(self):
        return codec.loads(self.expect(28)[1])['table']

    def log_end(self):
        return int(self.runtime()['commitLogMaxOffset'])

    def knows_broker(self, address):
        """Asked of a name server: is a broker registered under this address?"""
        return f'"{address}"'.encode() in self.expect(106)[1]

    def send(self, topic, body, properties):
        """The answer's code; the topic is made from the default topic if it is missing."""
        ext = {'a': 'probe', 'b': topic, 'c': 'TBW102', 'd': 1, 'e': 0, 'f': 0, 'g': int(time.time() * 1000), 'h': 0,
               'i': codec.properties_text(properties), 'j': 0, 'k': 'false', 'm': 'false'}
        return self.call(310, ext, body)[0].get('code', 0)

    def pull(self, topic, queue, group='readback'):
        """Every record of a queue from its beginning, as a consumer is given them."""
        found, offset = [], 0
        while True:
            header, body = self.call(11, {
                'consumerGroup': group, 'topic': topic, 'queueId': queue, 'queueOffset': offset, 'maxMsgNums': 32,
                'sysFlag': 4, 'commitOffset': 0, 'suspendTimeoutMillis': 0, 'subscription': '*', 'subVersion': 0,
                'expressionType': 'TAG'})
            code = header.get('code', 0)
            if code in (PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY):
                return found
            if code != SUCCESS:
                raise Refused(f'{self.address} answers a pull of {topic}/{queue} at {offset} with {code}: {header.get("remark")}')
            found += store.records(body)
            offset = int(header['extFields']['nextBeginOffset'])

    def committed(self, group, topic, queue):
        """The group's consumer offset, or None where the broker has none."""
        header, _ = self.call(14, {'consumerGroup': group, 'topic': topic, 'queueId': queue})
        code = header.get('code', 0)
        return int(header['extFields']['offset']) if code == SUCCESS else None

    def by_key(self, topic, key, unique=False):
        """Records that the index finds under a key; `unique` asks for the client's own message id."""
        ext = {'topic': topic, 'key': key, 'maxNum': 64, 'beginTimestamp': 0, 'endTimestamp': (1 << 62)}
        if unique:
            ext['_UNIQUE_KEY_'] = 'true'
        header, body = self.call(12, ext)
        code = header.get('code', 0)
        if code == QUERY_NOT_FOUND:
            return []
        if code != SUCCESS:
            raise Refused(f'{self.address} answers a query of {key} with {code}: {header.get("remark")}')
        return store.records(body)

    def by_log_offset(self, offset):
        return store.records(self.expect(33, {'offset': offset})[1])
