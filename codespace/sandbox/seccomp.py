"""The system calls that no command needs and that attacks on a kernel or a neighbour begin with.

The filter allows what it does not name: a list of what every build tool calls would break each week.
It is made once by libseccomp (through pyseccomp) and kept as bytes. A call that is denied fails with
EPERM; calls that programs know how to do without, and whose arguments a filter cannot see, fail with
ENOSYS, so that programs fall back to the form that can be looked at.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from types import ModuleType
from typing import Any, Final

from codespace.sandbox.binaries import SHORTAGES, check_start

DENIED: Final[tuple[str, ...]] = (
    # other processes' memory and descriptors
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"),
    # the mount table: what is read-only or masked stays so
    *("mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "open_by_handle_at", "quotactl", "quotactl_fd"),
    *("swapon", "swapoff", "fanotify_init"),
    # namespaces: rights inside a new one reach much more of the kernel
    "setns",
    # the kernel's large and young interfaces
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    # keyrings are shared by all of a user's processes
    *("keyctl", "add_key", "request_key"),
    # the machine
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "acct"),
    *("syslog", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "iopl", "ioperm", "modify_ldt"),
    *("sethostname", "setdomainname", "vhangup", "lookup_dcookie", "nfsservctl", "uselib"),
)
BY_NUMBER: Final = (457, 458, 467)
# statmount, listmount, open_tree_attr: the same on every architecture, and younger than most libseccomps.
YOUNGER: Final = range(470, 512)
# Calls that no kernel had when this list was last gone through (Linux 6.18 ends at 469): what a newer one offers is
# looked at before a command has it. Programs take such an answer for an older kernel. From 512 on lie those of x32.
UNKNOWN: Final = ("clone3", "fchmodat2", "openat2")
# Their arguments lie in memory. Each has an older form that every program falls back to.
_NAMESPACES: Final = (0x80, 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_CLONE_NAMESPACES: Final = _NAMESPACES[1:]
# In clone the bits of NEWTIME are the exit signal.
_TERMINAL: Final = (0x5412, 0x541C)
# TIOCSTI and TIOCLINUX type into the terminal of whoever started us.
_DISCIPLINE: Final = 0x5423
# TIOCSETD has the kernel load a module by number and drive a modem, a radio or a field bus over any terminal.
_ENCRYPTION: Final = (0x800C_6613, 0xC050_6617, 0xC040_6618, 0xC040_6619)
# FS_IOC_SET_ENCRYPTION_POLICY, _ADD_ and _REMOVE_ENCRYPTION_KEY (also _ALL_USERS): a directory whose names come and
# go with a key, unseen by its times, hides from the host what a command has put there.
_SUBVOLUMES: Final = (0x5000_9401, 0x5000_9417, 0x5000_940E, 0x5000_9418, 0x5000_940F, 0x5000_943F)
# BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE and SNAP_DESTROY, each with its second form: a snapshot of a root that is a
# subvolume has what is hidden there, unmasked, and one that is destroyed takes with it what is protected in it.
_LEASES: Final = (1024, 1040)
# F_SETLEASE, F_SETDELEG: whoever opens a file with a lease waits for the holder, 45 s as a rule, each time.
_PRIVILEGE_BITS: Final = (stat.S_ISUID, stat.S_ISGID)
_MODES: Final = (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mknod", 1), ("mknodat", 2), ("creat", 1))
# Where each call has its mode.
_OPENS: Final = (("open", 1, 2), ("openat", 2, 3))
# Where each has its flags and its mode; the mode counts only where a file may be made.
_MAKING: Final = (os.O_CREAT, 0o20000000)
# O_CREAT and the bit of O_TMPFILE.
_DEVICES: Final = (stat.S_IFCHR, stat.S_IFBLK)
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_KINDS: Final = (1, 2)
# SOCK_STREAM, SOCK_DGRAM
_PROTOCOLS: Final = (0, 6, 17)
# None said, TCP, UDP. SCTP, DCCP, L2TP, SMC, multipath TCP and UDP-Lite are modules that the first who asks has the
# kernel load, or large and young parts of it; who listens by multipath TCP where there is one takes TCP else (Go).
_UPPER_LAYER: Final = (6, 31)
# SOL_TCP, TCP_ULP: encryption in the kernel and other layers over a connection. Programs do it by themselves else.
_INT: Final = 0xFFFF_FFFF
# The kernel looks at 32 bits of an int; an attacker fills the rest to be unequal.
_BINARY_TREE: Final = 2
# SCMP_FLTATR_CTL_OPTIMIZE: a dozen comparisons for a call instead of a hundred.
_ATTRIBUTE_OPTIMIZE: Final = 8
_ATTRIBUTE_BAD_ARCHITECTURE: Final = 2


class Missing(Exception):
    """There is no libseccomp on this machine, or one that cannot make the filter."""


@functools.cache
def program() -> bytes:
    """Return the filter for this machine as BPF instructions; about 60 ms the first time, then kept.

    Raises: Missing, with the cause and the remedy in its text; OSError where it was short of
            descriptors, memory or processes.
    """
    library = _library()
    try:
        return _compile(library)
    except OSError as error:
        if error.errno in SHORTAGES:  # it passes: no reason to do without a filter until the daemon ends
            raise
        raise Missing(f"libseccomp could not make the filter ({error.strerror}); install a newer one") from error


def _library() -> ModuleType:
    """Return pyseccomp. It finds its library by a program; that none was found where none starts says nothing."""
    for is_last in (False, True):
        try:
            import pyseccomp
        except (ImportError, RuntimeError, OSError) as error:
            check_start()
            if is_last:
                what = "install it (Debian, Ubuntu: `libseccomp2`)"
                raise Missing(f"libseccomp cannot be loaded ({error}); {what}") from error
        else:
            library: ModuleType = pyseccomp
            break
    return library


def _compile(library: ModuleType) -> bytes:
    rules = _Rules(library)
    for name in DENIED:
        rules.deny(name)
    for number in BY_NUMBER:
        rules.deny(number)
    for name in UNKNOWN:
        rules.deny(name, code=errno.ENOSYS)
    _deny_namespaces(rules)
    _deny_privileges(rules)
    _deny_sockets(rules)
    for number in YOUNGER:
        rules.deny(number, code=errno.ENOSYS)
    for request in (*_TERMINAL, _DISCIPLINE, *_ENCRYPTION, *_SUBVOLUMES):
        rules.deny("ioctl", rules.masked(1, _INT, request))
    for lease in _LEASES:
        rules.deny("fcntl", rules.masked(1, _INT, lease))
    return rules.export()


def _deny_namespaces(rules: _Rules) -> None:
    for flag in _CLONE_NAMESPACES:
        rules.deny("clone", rules.masked(0, flag, flag))
    for flag in _NAMESPACES:
        rules.deny("unshare", rules.masked(0, flag, flag))


def _deny_privileges(rules: _Rules) -> None:
    """Deny set-user-id and set-group-id bits, and devices: a root daemon would leave them on the host."""
    for bit in _PRIVILEGE_BITS:
        for name, mode in _MODES:
            rules.deny(name, rules.masked(mode, bit, bit))
        for name, flags, mode in _OPENS:
            for making in _MAKING:
                rules.deny(name, rules.masked(flags, making, making), rules.masked(mode, bit, bit))
    for kind in _DEVICES:
        rules.deny("mknod", rules.masked(1, stat.S_IFMT(0xFFFF), kind))
        rules.deny("mknodat", rules.masked(2, stat.S_IFMT(0xFFFF), kind))


def _deny_sockets(rules: _Rules) -> None:
    """Leave AF_UNIX, TCP and UDP by AF_INET and AF_INET6, and the netlink that lists interfaces."""
    for family in range(_NETLINK):
        if family not in (_UNIX, _INET, _INET6):
            rules.deny("socket", rules.masked(0, _INT, family))
    rules.deny("socket", rules.library.Arg(0, rules.library.GT, _NETLINK))
    rules.deny("socket", rules.masked(0, _INT, _NETLINK), rules.library.Arg(2, rules.library.NE, 0))
    for family in (_INET, _INET6):
        for kind in range(16):
            if kind not in _KINDS:
                rules.deny("socket", rules.masked(0, _INT, family), rules.masked(1, 0xF, kind))
        for protocol in range(_PROTOCOLS[-1]):
            if protocol not in _PROTOCOLS:
                rules.deny("socket", rules.masked(0, _INT, family), rules.masked(2, _INT, protocol))
        rules.deny("socket", rules.masked(0, _INT, family), rules.library.Arg(2, rules.library.GT, _PROTOCOLS[-1]))
    level, option = _UPPER_LAYER
    rules.deny("setsockopt", rules.masked(1, _INT, level), rules.masked(2, _INT, option))
    rules.deny("socketpair", rules.library.Arg(0, rules.library.NE, _UNIX))


class _Rules:
    """A filter that is being made."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library
        self._filter = library.SyscallFilter(library.ALLOW)
        # A program of another word size would be looked at by the wrong numbers: it gets no call through.
        self._filter.set_attr(_ATTRIBUTE_BAD_ARCHITECTURE, library.ERRNO(errno.ENOSYS))

    def masked(self, position: int, mask: int, value: int) -> Any:
        return self.library.Arg(position, self.library.MASKED_EQ, mask, value)

    def deny(self, call: str | int, *arguments: Any, code: int = errno.EPERM) -> None:
        number = self._number(call) if isinstance(call, str) else call
        if number is not None:
            self._filter.add_rule(self.library.ERRNO(code), number, *arguments)

    def _number(self, name: str) -> int | None:
        """Return the number of a call; None where this architecture has none of that name."""
        number: int = self.library.resolve_syscall(self.library.system_arch(), name)
        if number < 0:
            return _YOUNG.get(name)
        return number

    def export(self) -> bytes:
        with contextlib.suppress(OSError):  # a libseccomp before 2.5 makes the same filter as a straight line
            self._filter.set_attr(_ATTRIBUTE_OPTIMIZE, _BINARY_TREE)
        with open(os.memfd_create("codespace-filter"), "w+b", buffering=0) as file:
            self._filter.export_bpf(file)
            file.seek(0)
            return file.readall()


_YOUNG: Final = {
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "fchmodat2": 452,
}
# Calls that an old libseccomp does not know by name; these have one number on every architecture.
