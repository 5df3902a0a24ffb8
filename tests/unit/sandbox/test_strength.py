"""The report on each kernel: enforced and missing restrictions of a parse, and additional ones."""

import pytest

from sandbox.confine import strength_with

MOVES = "before Landlock 2 (Linux 5.19), a parse may move no file into another folder, not even in its own"
SIGNALS = "before Landlock 6 (Linux 6.12), a parse may signal no process but itself, not even one that it started"
ABIS = range(1, 12)


@pytest.mark.parametrize("abi", ABIS)
def test_with_the_filter_no_kernel_since_landlock_1_leaves_anything_open(abi: int) -> None:
    strength = strength_with(abi, has_filter=True, is_root=False, own_user=False)
    assert not strength.missing
    assert strength.enforced == (f"landlock {abi}", "seccomp", "limits")
    assert strength.stricter == (*((MOVES,) if abi < 2 else ()), *((SIGNALS,) if abi < 6 else ()))
    assert strength.lines == (f"enforced on each parse: landlock {abi}, seccomp, limits", *strength.stricter)


def test_without_landlock_files_and_what_is_reached_by_them_are_open() -> None:
    strength = strength_with(0, has_filter=True, is_root=False, own_user=False)
    [files] = strength.missing
    assert files.startswith("this kernel has no Landlock (Linux 5.13, `lsm=landlock`): a parse may read and write any")
    assert (strength.enforced, strength.stricter) == (("seccomp", "limits"), (SIGNALS,))


@pytest.mark.parametrize("abi", [0, *ABIS])
def test_without_the_filter_all_is_said_that_this_landlock_leaves_open(abi: int) -> None:
    strength = strength_with(abi, has_filter=False, is_root=False, own_user=False)
    *_, told = strength.missing
    assert len(strength.missing) == (1 if abi else 2)
    assert ("other than those of TCP" in told) == (abi >= 4)
    assert ("truncate any file" in told) == (abi < 3)
    assert ("signal other processes" in told) == (abi < 6)
    assert "modes and owners" in told
    assert strength.stricter == ((MOVES,) if abi == 1 else ())


@pytest.mark.parametrize(
    ("has_filter", "own_user", "enforced", "n_missing"),
    [
        (True, True, ("landlock 7", "seccomp", "limits", "own user"), 0),
        (True, False, ("landlock 7", "seccomp", "limits", "no fork"), 0),
        (False, True, ("landlock 7", "limits", "own user"), 1),
        (False, False, ("landlock 7", "limits"), 2),
    ],
)
def test_roots_parses_become_a_user_or_start_no_process(
    has_filter: bool, own_user: bool, enforced: tuple[str, ...], n_missing: int
) -> None:
    strength = strength_with(7, has_filter=has_filter, is_root=True, own_user=own_user)
    assert strength.enforced == enforced
    assert len(strength.missing) == n_missing
    assert strength.may_fork == own_user
