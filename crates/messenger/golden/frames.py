#!/usr/bin/env python3
"""Known-answer vectors for msgr2.1 frames, made without the crate's code.

Writes frames.txt: one `name hex` a line. Needs the `cryptography` package. The test in
src/frame/tests.rs reads the file; run this again only when a vector is added.
"""
import struct
from pathlib import Path
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

POLY = 0x82F63B78


def crc(data, start):
    """crc-32c, reflected, no final inversion."""
    c = start
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = (c >> 1) ^ (POLY if c & 1 else 0)
    return c


MINUS1 = 0xFFFFFFFF
ALIGN = [8, 8, 8, 4096]


def preamble(tag, segs):
    body = struct.pack("<BB", tag, len(segs))
    for i in range(4):
        body += struct.pack("<IH", len(segs[i]), ALIGN[i]) if i < len(segs) else bytes(6)
    body += bytes(2)
    assert len(body) == 28
    return body + struct.pack("<I", crc(body, 0))


def crc_frame(tag, segs, late=0x0E):
    out = preamble(tag, segs) + segs[0] + struct.pack("<I", crc(segs[0], MINUS1))
    if len(segs) > 1:
        rest = segs[1:] + [b""] * (4 - len(segs))
        out += b"".join(rest) + bytes([late])
        out += b"".join(struct.pack("<I", crc(s, MINUS1)) for s in rest)
    return out


def pad(b):
    return b + bytes(-len(b) % 16)


class Gcm:
    def __init__(self, key, nonce):
        self.aead, self.fixed = AESGCM(key), nonce[:4]
        (self.counter,) = struct.unpack("<Q", nonce[4:])

    def seal(self, text):
        nonce = self.fixed + struct.pack("<Q", self.counter)
        self.counter += 1
        return self.aead.encrypt(nonce, text, None)

    def frame(self, tag, segs, late=0x0E):
        out = self.seal(preamble(tag, segs) + segs[0][:48] + bytes(max(0, 48 - len(segs[0]))))
        if len(segs[0]) > 48:
            out += self.seal(pad(segs[0][48:]))
        if len(segs) > 1:
            out += self.seal(b"".join(map(pad, segs[1:])) + bytes([late]) + bytes(15))
        return out


def ramp(n, start=0):
    return bytes((start + i) & 0xFF for i in range(n))


gcm = Gcm(bytes(range(16)), bytes(range(100, 112)))
vectors = {
    "zeros28_crc": struct.pack("<I", crc(bytes(28), MINUS1)),
    "crc_ack": crc_frame(20, [struct.pack("<Q", 7)]),
    "crc_wait": crc_frame(16, [b""]),
    "crc_message": crc_frame(17, [ramp(41), ramp(5, 50), b"", ramp(20, 90)]),
    "crc_message_front_only": crc_frame(17, [ramp(41), ramp(17, 3)]),
    "crc_message_aborted": crc_frame(17, [ramp(41), ramp(17, 3)], 0x01),
    "secure_1_ack": gcm.frame(20, [struct.pack("<Q", 7)]),
    "secure_2_control_48": gcm.frame(8, [ramp(48)]),
    "secure_3_control_49": gcm.frame(8, [ramp(49)]),
    "secure_4_message": gcm.frame(17, [ramp(41), ramp(16, 50), b"", ramp(33, 90)]),
    "secure_5_long_control_and_data": gcm.frame(17, [ramp(200), b"", b"", ramp(1, 9)]),
    "secure_6_aborted": gcm.frame(17, [ramp(41), ramp(3)], 0x01),
}
text = "".join(f"{k} {v.hex()}\n" for k, v in vectors.items())
Path(__file__).with_name("frames.txt").write_text(text)
