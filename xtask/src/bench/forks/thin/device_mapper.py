"""What dmsetup does, by ioctls of one process that stays: the times that it says are the kernel's, without the start of a program.

Each line of standard input has commands separated by tabs, which are executed one after the other:

    create NAME SECTORS TARGET PARAMETERS...    a device of one target, resumed
    suspend NAME / resume NAME / remove NAME
    message NAME TEXT...

The answer is a line, too: `NANOSECONDS MINOR`, with the minor number of the last command's device, or `! WHY`.
"""

import fcntl
import struct
import sys
import time

HEADER = struct.Struct("=3I3Ii3IQ128s129s7s")
CREATE, REMOVE, SUSPEND, TABLE_LOAD, MESSAGE = 3, 4, 6, 9, 14
SUSPEND_FLAG = 1 << 1

control = open("/dev/mapper/control", "r+b", buffering=0)


def ask(command, name, flags=0, data=b"", targets=0):
    size = max(HEADER.size + len(data), 4096)
    header = HEADER.pack(4, 0, 0, size, HEADER.size, targets, 0, flags, 0, 0, 0, name.encode(), b"", b"")
    buffer = bytearray((header + data).ljust(size, b"\0"))
    fcntl.ioctl(control, 3 << 30 | HEADER.size << 16 | 0xFD << 8 | command, buffer, True)
    device = HEADER.unpack_from(buffer)[10]
    return device & 0xFF | device >> 12 & 0xFFF00


def run(words):
    what, name = words[:2]
    if what == "create":
        ask(CREATE, name)
        parameters = " ".join(words[4:]).encode() + b"\0"
        parameters += b"\0" * (-len(parameters) % 8)
        target = struct.pack("=QQiI16s", 0, int(words[2]), 0, 40 + len(parameters), words[3].encode())
        try:
            ask(TABLE_LOAD, name, data=target + parameters, targets=1)
            return ask(SUSPEND, name)
        except OSError:
            ask(REMOVE, name)
            raise
    if what == "message":
        return ask(MESSAGE, name, data=struct.pack("=Q", 0) + " ".join(words[2:]).encode() + b"\0")
    if what == "suspend":
        return ask(SUSPEND, name, flags=SUSPEND_FLAG)
    return ask({"resume": SUSPEND, "remove": REMOVE}[what], name)


for line in sys.stdin:
    commands = [command.split() for command in line.strip().split("\t")]
    try:
        began = time.perf_counter_ns()
        for words in commands:
            minor = run(words)
        answer = f"{time.perf_counter_ns() - began} {minor}"
    except OSError as error:
        answer = f"! {' '.join(words)}: {error}"
    print(answer, flush=True)
