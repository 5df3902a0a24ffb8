"""Numbers of the system calls that a parse is restricted in, by the machine's architecture.

Source: Linux 6.18, `arch/x86/entry/syscalls/syscall_64.tbl` and `scripts/syscall.tbl` (arm64). Calls from 424 on have
the same number everywhere. A call that an architecture never had is absent from its table.
"""

LAST_KNOWN = 469
"""Highest system call looked at; what a newer kernel adds does not exist for a parse."""

# fmt: off
_EVERYWHERE = {
    "clone3": 435, "fchmodat2": 452, "file_setattr": 469, "fsconfig": 431, "fsmount": 432, "fsopen": 430,
    "fspick": 433, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "lsm_set_self_attr":
    460, "mount_setattr": 442, "move_mount": 429, "open_tree": 428, "open_tree_attr": 467, "openat2": 437,
    "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440, "process_mrelease": 448,
    "quotactl_fd": 443, "removexattrat": 466, "setxattrat": 463,
}

X86_64 = _EVERYWHERE | {
    "accept": 43, "accept4": 288, "acct": 163, "add_key": 248, "adjtimex": 159, "bind": 49, "bpf": 321, "chmod":
    90, "chown": 92, "chroot": 161, "clock_adjtime": 305, "clock_settime": 227, "clone": 56, "connect": 42,
    "create_module": 174, "delete_module": 176, "fanotify_init": 300, "fanotify_mark": 301, "fchmod": 91,
    "fchmodat": 268, "fchown": 93, "fchownat": 260, "fcntl": 72, "finit_module": 313, "fork": 57, "fremovexattr": 199,
    "fsetxattr": 190, "futimesat": 261, "init_module": 175, "ioctl": 16, "ioperm": 173, "iopl": 172,
    "ioprio_set": 251, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "kill": 62,
    "lchown": 94, "listen": 50, "lookup_dcookie": 212, "lremovexattr": 198, "lsetxattr": 189, "migrate_pages":
    256, "mknod": 133, "mknodat": 259, "modify_ldt": 154, "mount": 165, "move_pages": 279, "mq_open": 240,
    "mq_unlink": 241, "msgctl": 71, "msgget": 68, "msgrcv": 70, "msgsnd": 69, "name_to_handle_at": 303,
    "nfsservctl": 180, "open": 2, "open_by_handle_at": 304, "openat": 257, "perf_event_open": 298,
    "personality": 135, "pivot_root": 155, "prctl": 157, "prlimit64": 302, "process_vm_readv": 310,
    "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "reboot": 169, "removexattr": 197, "request_key":
    249, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "sched_setaffinity": 203, "sched_setattr": 314,
    "sched_setparam": 142, "sched_setscheduler": 144, "semctl": 66, "semget": 64, "semop": 65, "semtimedop":
    220, "sendto": 44, "setdomainname": 171, "sethostname": 170, "setns": 308, "setpgid": 109, "setpriority":
    141, "setsid": 112, "settimeofday": 164, "setxattr": 188, "shmat": 30, "shmctl": 31, "shmget": 29, "socket":
    41, "socketpair": 53, "swapoff": 168, "swapon": 167, "_sysctl": 156, "sysfs": 139, "syslog": 103, "tgkill":
    234, "tkill": 200, "truncate": 76, "umount2": 166, "unshare": 272, "uselib": 134, "userfaultfd": 323,
    "utime": 132, "utimensat": 280, "utimes": 235, "vfork": 58, "vhangup": 153,
}

AARCH64 = _EVERYWHERE | {
    "accept": 202, "accept4": 242, "acct": 89, "add_key": 217, "adjtimex": 171, "bind": 200, "bpf": 280,
    "chroot": 51, "clock_adjtime": 266, "clock_settime": 112, "clone": 220, "connect": 203, "delete_module":
    106, "fanotify_init": 262, "fanotify_mark": 263, "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54,
    "fcntl": 25, "finit_module": 273, "fremovexattr": 16, "fsetxattr": 7, "init_module": 105, "ioctl": 29,
    "ioprio_set": 30, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "kill": 129,
    "listen": 201,
    "lookup_dcookie": 18, "lremovexattr": 15, "lsetxattr": 6, "migrate_pages": 238, "mknodat": 33, "mount": 40,
    "move_pages": 239, "mq_open": 180, "mq_unlink": 181, "msgctl": 187, "msgget": 186, "msgrcv": 188, "msgsnd":
    189, "name_to_handle_at": 264, "nfsservctl": 42, "open_by_handle_at": 265, "openat": 56, "perf_event_open":
    241, "personality": 92, "pivot_root": 41, "prctl": 167, "prlimit64": 261, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142, "removexattr": 14, "request_key":
    218, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setattr": 274,
    "sched_setparam": 118, "sched_setscheduler": 119, "semctl": 191, "semget": 190, "semop": 193, "semtimedop":
    192, "sendto": 206, "setdomainname": 162, "sethostname": 161, "setns": 268, "setpgid": 154, "setpriority":
    140, "setsid": 157, "settimeofday": 170, "setxattr": 5, "shmat": 196, "shmctl": 195, "shmget": 194,
    "socket": 198, "socketpair": 199, "swapoff": 225, "swapon": 224, "syslog": 116, "tgkill": 131, "tkill": 130,
    "truncate": 45, "umount2": 39, "unshare": 97, "userfaultfd": 282, "utimensat": 88, "vhangup": 58,
}
# fmt: on
