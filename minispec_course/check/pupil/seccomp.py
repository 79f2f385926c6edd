"""A seccomp filter: the system calls that no answer to an exercise needs are refused by the kernel itself.

The filter is a short program for the kernel's packet-filter machine, made here and handed over once; after that no
process can take it off. It looks at the number of the call (and where that is a process, at its first argument):

    another architecture's calls, by which the same number means something else     the process is killed
    a call of the table below                                                       refused: EPERM
    a new process or thread                                                         refused: EAGAIN, as if at the limit
    a signal to another process, or a limit for one                                 refused: EPERM
    a call newer than this file                                                     refused: ENOSYS, as on an old kernel
    everything else                                                                 allowed
"""

import ctypes
import errno
import os
import platform

# name=(its number on x86_64, on arm64); None where the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = (
    # looking into other processes, or taking their files
    dict(ptrace=(101, 117), process_vm_readv=(310, 270), process_vm_writev=(311, 271), kcmp=(312, 272))
    | dict(pidfd_open=(434, 434), pidfd_getfd=(438, 438), process_madvise=(440, 440))
    # the kernel's key rings, which outlive a process
    | dict(add_key=(248, 217), request_key=(249, 218), keyctl=(250, 219))
    # large doors into the kernel
    | dict(io_uring_setup=(425, 425), io_uring_enter=(426, 426), io_uring_register=(427, 427), userfaultfd=(323, 282))
    | dict(perf_event_open=(298, 241), bpf=(321, 280), fanotify_init=(300, 262), init_module=(175, 105))
    | dict(finit_module=(313, 273), delete_module=(176, 106), kexec_load=(246, 104), kexec_file_load=(320, 294))
    | dict(modify_ldt=(154, None), iopl=(172, None), ioperm=(173, None), personality=(135, 92), vmsplice=(278, 75))
    # other file systems and namespaces
    | dict(mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41), chroot=(161, 51), unshare=(272, 97))
    | dict(setns=(308, 268), open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), fsconfig=(431, 431))
    | dict(fsmount=(432, 432), fspick=(433, 433), mount_setattr=(442, 442), name_to_handle_at=(303, 264))
    | dict(open_by_handle_at=(304, 265), quotactl=(179, 60), quotactl_fd=(443, 443))
    # other programs
    | dict(execve=(59, 221), execveat=(322, 281))
    # a network: the one socket that a student's process has is there already
    | dict(socket=(41, 198), socketpair=(53, 199), bind=(49, 200), listen=(50, 201), accept=(43, 202))
    | dict(accept4=(288, 242), connect=(42, 203))
    # memory that no limit counts, and that may outlive the process
    | dict(memfd_create=(319, 279), memfd_secret=(447, 447), shmget=(29, 194), shmctl=(31, 195), shmat=(30, 196))
    | dict(shmdt=(67, 197), msgget=(68, 186), msgctl=(71, 187), msgrcv=(70, 188), msgsnd=(69, 189), semget=(64, 190))
    | dict(semctl=(66, 191), semop=(65, 193), semtimedop=(220, 192), mq_open=(240, 180), mq_unlink=(241, 181))
    | dict(mbind=(237, 235), set_mempolicy=(238, 237), migrate_pages=(256, 238), move_pages=(279, 239))
    # owners, rights and times of files, which Landlock does not guard; and who gets the processor
    | dict(chmod=(90, None), fchmod=(91, 52), fchmodat=(268, 53), fchmodat2=(452, 452), chown=(92, None))
    | dict(lchown=(94, None), fchown=(93, 55), fchownat=(260, 54), setxattr=(188, 5), lsetxattr=(189, 6))
    | dict(fsetxattr=(190, 7), removexattr=(197, 14), lremovexattr=(198, 15), fremovexattr=(199, 16))
    | dict(utime=(132, None), utimes=(235, None), futimesat=(261, None), utimensat=(280, 88))
    | dict(sched_setparam=(142, 118), sched_setscheduler=(144, 119), sched_setaffinity=(203, 122))
    | dict(sched_setattr=(314, 274), setpriority=(141, 140), ioprio_set=(251, 30))
    # the machine
    | dict(reboot=(169, 142), swapon=(167, 224), swapoff=(168, 225), acct=(163, 89), syslog=(103, 116))
    | dict(settimeofday=(164, 170), clock_settime=(227, 112), adjtimex=(159, 171), clock_adjtime=(305, 266))
    | dict(sethostname=(170, 161), setdomainname=(171, 162))
    # signals to a thread by its number alone, or with forged contents
    | dict(tkill=(200, 130), rt_sigqueueinfo=(129, 138), rt_tgsigqueueinfo=(297, 240), pidfd_send_signal=(424, 424))
)
NEW_PROCESS = {"clone": (56, 220), "clone3": (435, 435), "fork": (57, None), "vfork": (58, None)}
OWN = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}  # allowed, if it is about this process
NEWEST = 462  # the calls up to here were looked at (Linux 6.10); landlock and others that only restrict are among them

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
LOAD, JUMP_EQUAL, JUMP_GREATER, RETURN = 0x20, 0x15, 0x25, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # where they lie in the kernel's struct seccomp_data
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


class Instruction(ctypes.Structure):
    """One step: what to do, how many steps to skip if a comparison holds or does not, and a number."""

    _fields_ = [("code", ctypes.c_uint16), ("if_true", ctypes.c_uint8), ("if_false", ctypes.c_uint8)]
    _fields_ += [("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.POINTER(Instruction))]


def program(machine: str, pid: int) -> list[tuple[int, int, int, int]]:
    """The filter for an architecture and a process, as (code, if true, if false, k)."""
    column, architecture = ARCHITECTURES[machine]
    steps = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (JUMP_GREATER, 0, 1, NEWEST),  # x86_64's second numbering, x32, starts far above
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    for table, refusal in ((NEW_PROCESS, errno.EAGAIN), (DENIED, errno.EPERM)):
        for numbers in table.values():
            if numbers[column] is not None:
                steps += [(JUMP_EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, ERRNO | refusal)]
    for name, numbers in OWN.items():
        itself = [pid, 0] if name == "prlimit64" else [pid]  # kill(0) would mean the whole group
        steps += [
            (JUMP_EQUAL, 0, 2 + 2 * len(itself), numbers[column]),
            (LOAD, 0, 0, FIRST_ARGUMENT),  # its lower half, which is all that the kernel looks at
            *(step for one in itself for step in ((JUMP_EQUAL, 0, 1, one), (RETURN, 0, 0, ALLOW))),
            (RETURN, 0, 0, ERRNO | errno.EPERM),
        ]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def install() -> None:
    """Put the filter on this process, for good. It must have no_new_privs. OSError: this kernel has no filters."""
    if platform.machine() not in ARCHITECTURES:
        raise OSError(f"there is no filter for {platform.machine()}")
    steps = [Instruction(*step) for step in program(platform.machine(), os.getpid())]
    whole = Program(len(steps), (Instruction * len(steps))(*steps))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))
