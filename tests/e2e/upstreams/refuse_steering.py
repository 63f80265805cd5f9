"""Runs a program that cannot attach programs to SO_REUSEPORT groups, as in some sandboxes, nor can what it starts.

    refuse_steering.py PROGRAM [ARGUMENT...]
"""

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF = 1, 51
SETSOCKOPT = {"x86_64": 54, "aarch64": 208, "riscv64": 208}[platform.machine()]

# Offsets of `struct seccomp_data`: the system call's number, and the lower halves of its second and third argument.
program = [
    (LOAD, 0, 0, 0),
    (EQUAL, 0, 5, SETSOCKOPT),
    (LOAD, 0, 0, 24),
    (EQUAL, 0, 3, SOL_SOCKET),
    (LOAD, 0, 0, 32),
    (EQUAL, 0, 1, SO_ATTACH_REUSEPORT_CBPF),
    (RETURN, 0, 0, REFUSE),
    (RETURN, 0, 0, ALLOW),
]
instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions)))
libc = ctypes.CDLL(None, use_errno=True)
for option, *arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_)]:
    if libc.prctl(option, *arguments, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
