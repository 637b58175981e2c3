#!/usr/bin/env python3
"""The known answer of src/auth/secret.rs, made without the crate's code."""
import hashlib, hmac
from pathlib import Path

key = hashlib.sha256(b"firn cluster secret 1" + bytes([7] * 32)).digest()
name = b"host-a"
body = b"firn client" + bytes([0, 1]) + bytes([1] * 32) + bytes([2] * 32) + bytes([len(name)]) + name
Path(__file__).with_name("client_proof.txt").write_text(hmac.new(key, body, hashlib.sha256).hexdigest() + "\n")
