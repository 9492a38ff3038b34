"""The remoting frame: length, header mark, JSON header, body. Big-endian throughout.

Only what the checks need: they speak JSON headers, which every broker takes and answers in kind.
The ROCKETMQ header is exercised by the Java clients.
"""
import json
import re
import struct

# A quoted string, or a bare integer key of an object: fastjson writes {0:15} for a map of integers.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')


def loads(text):
    """Parse fastjson's dialect, in which integer map keys come without quotes."""
    def quote(match):
        if match.group(2) is None:
            return match.group(0)
        return f'{match.group(1)}"{match.group(2)}"{match.group(3)}'
    return json.loads(_BARE_KEY.sub(quote, text.decode('utf-8') if isinstance(text, bytes) else text))


def encode(code, opaque, ext, body=b''):
    """One request's bytes, the 4-byte length included."""
    header = json.dumps({
        'code': code, 'language': 'JAVA', 'version': 409, 'opaque': opaque, 'flag': 0,
        'extFields': {key: str(value) for key, value in ext.items()}, 'serializeTypeCurrentRPC': 'JSON',
    }).encode()
    return struct.pack('>II', 4 + len(header) + len(body), len(header)) + header + body


def decode(frame):
    """(header, body) of what follows the 4-byte length."""
    mark, = struct.unpack_from('>I', frame)
    if mark >> 24:
        raise ValueError(f'header type {mark >> 24} in the answer to a JSON request')
    end = 4 + (mark & 0xffffff)
    return loads(frame[4:end]), frame[end:]


def properties_text(properties):
    """Message properties as the wire and the log have them."""
    return '\x02'.join(f'{key}\x01{value}' for key, value in properties.items())


def properties_of(text):
    return dict(pair.split('\x01', 1) for pair in text.split('\x02') if '\x01' in pair)
