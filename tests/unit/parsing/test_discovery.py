"""The files of a DAG folder, their order, and the effect of ignore files and links."""

import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from asynsched.channels import FileChanged
from asynsched.parsing.looks import look_at, text_hash
from asynsched.parsing.watching.discovery import BY_RE, FoundFile, IgnoreRules, read_patterns, scan, type_of_mount
from asynsched.parsing.watching.watcher import changes_between, in_order, interpret
from sandbox.sources.local_imports import SourceRecorder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "dags"
    root.mkdir()
    return root


def make(root: Path, *paths: str, text: str = "") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def found(root: Path, home: str = "home") -> tuple[set[str], set[str]]:
    """Return the files that are to be parsed, and those that are ignored."""
    files = scan(root, root / home).files
    return {path for path in files if not files[path].is_ignored}, {path for path in files if files[path].is_ignored}


def test_python_files_and_archives_are_found_and_nothing_else(root):
    make(root, "a.py", "b.zip", "deep/er/c.py", "with\nnewline.py", "spa ce/d.py", "folder.py/e.py")
    make(root, "notes.txt", "f.pyc", ".hidden.py", ".git/g.py", "__pycache__/h.py", "node_modules/i.py", "home/j.py")
    make(root, "venv/pyvenv.cfg", "venv/lib/k.py")
    assert found(root) == (
        {"a.py", "b.zip", "deep/er/c.py", "with\nnewline.py", "spa ce/d.py", "folder.py/e.py"},
        set(),
    )


def test_the_deepest_ignore_file_has_the_last_word(root):
    make(root, "keep.py", "drop.py", "lib/a.py", "lib/deep/b.py", "team/x_test.py", "team/y_test.py", "team/z.py")
    make(root, "other/x_test.py", "both/m.py", "both/n.py", "team/lib/c.py", "anchored/lib/d.py")
    make(root, ".airflowignore", text="drop.py  # not yet\n# a comment\n/lib/\n*_test.py\nboth/*\n")
    make(root, "team/.airflowignore", text="!y_test.py\n")
    make(root, "both/.asynschedignore", text="!n.py\n")
    make(root, "both/.airflowignore", text="n.py\n")
    parsed, ignored = found(root)
    assert ignored == {"drop.py", "lib/a.py", "lib/deep/b.py", "team/x_test.py", "other/x_test.py", "both/m.py"}
    assert parsed == {"keep.py", "team/y_test.py", "team/z.py", "both/n.py", "team/lib/c.py", "anchored/lib/d.py"}


def test_a_line_that_is_no_pattern_is_named_and_the_others_hold(root):
    make(root, "a.py", "b.py")
    make(root, ".airflowignore", text="!\nreport[2026-01].py\nb.py\n[[:alpha:]].txt\n")
    snapshot = scan(root, root / "home")
    assert snapshot.files["b.py"].is_ignored
    assert [problem[:22] for problem in snapshot.problems] == [f".airflowignore, line {n}" for n in (1, 2, 4)]


@given(st.text(max_size=200), st.lists(st.text("ab.*/!", min_size=1, max_size=8), max_size=5))
def test_no_text_of_an_ignore_file_does_harm(text, paths):
    rules = IgnoreRules().below("", read_patterns("ignore", text).spec)
    assert all(rules.ignores(path) in (True, False) for path in paths)


GLOBS = st.lists(st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "/", "/**/", "**/", "!"]), min_size=1, max_size=9)
PATHS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5).map("/".join)


@given(GLOBS.map("".join), st.lists(PATHS, min_size=1, max_size=5))
def test_patterns_fit_what_the_library_says_that_they_fit(pattern, paths):
    assume(pattern != "!")
    rules = IgnoreRules().below("", read_patterns("ignore", pattern).spec)
    plain = GitIgnoreSpec.from_lines([pattern], **BY_RE)
    assert [rules.ignores(path) for path in paths] == [bool(plain.check_file(path).include) for path in paths]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "b", "a" * 255),
        ("a" + "**" * 60 + "b", "a" * 255),
        ("**/a/" * 20 + "b", "a/" * 2000),
        ("**/*a*a*a/" * 20 + "b", ("a" * 100 + "/") * 40),
        (" " * 200_000 + "b", "a"),
    ],
    ids=["wildcards in a name", "stars in a row", "any folders", "both", "spaces"],
)
def test_no_pattern_takes_longer_than_its_length_and_that_of_the_path(pattern, path):
    """Matched with backtracking, none of these would be done in the time that a test has."""
    rules = IgnoreRules().below("", read_patterns("ignore", pattern).spec)
    assert not rules.ignores(path)


def test_a_pattern_longer_than_any_path_is_named_and_skipped():
    found = read_patterns(".airflowignore", "*" * 5000 + "\na.py\n")
    assert found.problems == (".airflowignore, line 1: a pattern longer than any path; the line is skipped",)
    assert IgnoreRules().below("", found.spec).ignores("a.py")


@pytest.mark.parametrize(
    ("pattern", "is_named"),
    [
        (r".*\.py$", True), ("sub/.*", True), ("^old_", True), (r"!^old_", True), (r"test_\d+", True), ("a_.*_b", True),
        ("x.*y.py", True), ("*.py", False), ("name.*", False), ("*.*", False), ("name.*.py", False), ("a/**/b", False),
        ("[ab].*", False), (r"\#a.py", False), ("$a.py", False),
    ],
)  # fmt: skip
def test_a_line_like_a_regular_expression_is_named_and_read_as_a_glob(pattern, is_named):
    found = read_patterns(".airflowignore", f"a.py\n{pattern}")
    named = f".airflowignore, line 2: {pattern!r} looks like a regular expression, but is read as a glob"
    assert [problem.startswith(named) for problem in found.problems] == [True] * is_named
    assert len(found.spec.patterns) == 2


def test_lines_of_an_ignore_file_elsewhere_are_not_shown(root, tmp_path):
    make(root, "a.py", "b.py")
    make(tmp_path, "secrets", text="a.py\n^the_word_is_mum\nb.*.py$\n")
    (root / ".airflowignore").symlink_to(tmp_path / "secrets")
    snapshot = scan(root, root / "home")
    assert (snapshot.files["a.py"].is_ignored, snapshot.files["b.py"].is_ignored) == (True, False)
    [problem] = snapshot.problems
    assert problem.startswith(".airflowignore: 2 lines may be no glob patterns; they are not shown")


def test_an_ignore_file_in_another_encoding_is_named_and_holds(root):
    make(root, "a.py")
    (root / ".airflowignore").write_bytes("café\n".encode() + "café\na.py\n".encode("latin-1"))
    snapshot = scan(root, root / "home")
    assert snapshot.files["a.py"].is_ignored
    assert snapshot.problems == [".airflowignore, line 2: this is not UTF-8; save the file as UTF-8"]


def test_linked_folders_are_followed_and_loops_are_cut(root, tmp_path):
    make(root, "own/a.py")
    make(tmp_path / "elsewhere", "b.py", "sub/c.py")
    (root / "loop").symlink_to(root)
    (root / "own" / "up").symlink_to("..")
    (root / "again").symlink_to("own")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "one.py").symlink_to(tmp_path / "elsewhere" / "b.py")
    (root / "broken.py").symlink_to("nowhere")
    assert found(root)[0] == {"own/a.py", "linked/b.py", "linked/sub/c.py", "one.py", "broken.py"}


def test_events_name_each_path_of_a_file_or_ask_for_a_walk(root, tmp_path):
    make(root, "a.py", "sub/b.py", "drop.py", ".airflowignore", text="drop.py")
    make(tmp_path / "elsewhere", "c.py", "noise.txt")
    (root / "alias.py").symlink_to("a.py")
    (root / "far.py").symlink_to(tmp_path / "elsewhere" / "c.py")
    snapshot = scan(root, root / "home")

    def said(*paths: str) -> tuple[set[str], bool]:
        touched = interpret(root, snapshot, {str(root / path) for path in paths})
        return set(touched.files), touched.needs_walk

    assert said("a.py") == ({"a.py", "alias.py"}, False)
    assert said("sub/b.py", "sub/new.py", "sub/b.py.swp") == ({"sub/b.py", "sub/new.py"}, False)
    elsewhere = tmp_path / "elsewhere"
    assert said(f"{elsewhere}/c.py", f"{elsewhere}/noise.txt") == ({"far.py"}, False)
    assert said(".airflowignore")[1]
    assert said("alias.py") == ({"alias.py"}, True)
    assert interpret(root, snapshot, {str(root / "drop.py")}).files["drop.py"].is_ignored
    make(root, "more/d.py")
    assert said("more") == (set(), True)
    assert interpret(root, snapshot, {str(root / "sub")}).needs_watch
    (root / "a.py").unlink()
    assert interpret(root, snapshot, {str(root / "a.py")}).files["a.py"] is None


NEW, OLD = FoundFile(2, 1, 1, False), FoundFile(1, 1, 1, False)


def test_two_scans_tell_what_was_made_edited_removed_and_ignored():
    before = {"same": NEW, "edited": OLD, "gone": NEW, "dropped": NEW}
    after = {"same": NEW, "edited": NEW, "made": NEW, "dropped": NEW._replace(is_ignored=True)}
    assert changes_between(before, after) == [
        FileChanged("dropped", is_ignored=True),
        FileChanged("edited"),
        FileChanged("gone", removed=True),
        FileChanged("made"),
    ]


def test_files_are_ordered_as_the_setting_says():
    files = {"b": NEW, "a": OLD, **{f"c{number}": OLD for number in range(20)}}
    changes = [FileChanged("gone", removed=True), *map(FileChanged, files)]

    def order(mode, host="host"):
        return [change.path for change in in_order(changes, files, mode, host)]

    assert order("modified_time")[:3] == ["gone", "b", "a"]
    assert order("alphabetical") == ["gone", *sorted(files)]
    drawn = order("random_seeded_by_host")
    assert drawn == order("random_seeded_by_host")
    assert drawn != order("random_seeded_by_host", "another")
    assert sorted(drawn[1:]) == sorted(files)


MOUNTS = r"""
21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/a\040share rw - nfs4 server:/x rw
31 21 0:41 / /data rw - ext4 /dev/sdb rw
32 31 0:42 / /data/dags rw - tmpfs tmpfs rw
33 21 0:43 / /data rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/mnt/a share/dags", "nfs4"),
        ("/mnt/a shared", "ext4"),
        ("/data/other", "fuse.sshfs"),
        ("/data/dags/x", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_deepest_and_last_mount(path, kind):
    assert type_of_mount(PurePosixPath(path), MOUNTS) == kind


def archive(path: Path, **members: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, text in members.items():
            opened.writestr(f"{name}.py", text)


def test_safe_mode_takes_what_mentions_a_dag_and_what_defines_one(root):
    texts = {
        "airflow.py": ("from AirFlow import DAG", True),
        "asynsched.py": ("from asynsched import dag", True),
        "asset.py": ("from airflow.sdk import Asset", True),
        "no_dag.py": ("import asynsched", False),
        "nobody.py": ("a dagger", False),
        "empty.py": ("", False),
        "not_utf8.py": ("# -*- coding: latin-1 -*-\nfrom asynsched import DAG # \xe9", True),
    }
    for name, (text, _) in texts.items():
        (root / name).write_bytes(text.encode("latin-1"))
    archive(root / "with.zip", a="x = 1", b="from asynsched import DAG")
    archive(root / "with_asset.zip", a="from asynsched import asset")
    archive(root / "without.zip", a="x = 1")
    archive(root / "bomb.zip", a="x" * (80 * 1024**2))
    (root / "no.zip").write_text("this is no zip archive")
    expected = {name: mentions for name, (_, mentions) in texts.items()}
    expected |= {"with.zip": True, "with_asset.zip": True, "without.zip": False, "bomb.zip": True, "no.zip": True}
    assert {name: look_at(root, name).mentions_dag for name in expected} == expected


def test_a_text_has_the_hash_that_its_parse_records(root):
    same = ["x = '\xe9'\ny = 1\n".encode(), "x = '\xe9'\r\ny = 1\r\n".encode(), "\ufeffx = '\xe9'\ny = 1\n".encode()]
    hashes = set()
    for data in same:
        (root / "module.py").write_bytes(data)
        hashes.add(look_at(root, "module.py").text_hash)
    assert len(hashes) == 1
    (root / "module.py").write_bytes(b"x = '\xe9'\n")
    assert look_at(root, "module.py").text_hash not in hashes


def test_a_folder_that_is_away_tells_nothing_of_its_files(root):
    make(root, "a.py")
    assert look_at(root, "b.py").is_gone
    assert look_at(root, "a.py/b.py").is_gone
    root.rename(root.with_name("away"))
    assert look_at(root, "a.py") is None


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\r\n",
        b"\xef\xbb\xbfx = 1\n",
        b"# coding: latin-1\n# \xe9\r\n",
        b"\xff\r\n",
        b"# coding: no\n",
        b"x\r\n\0",
    ],
    ids=["line ends", "byte order mark", "encoding", "not UTF-8", "unknown encoding", "null byte"],
)
def test_a_look_and_a_parse_name_the_same_text(data):
    sources = []
    with suppress(SyntaxError):
        SourceRecorder(Path("/dags"), sources.append).note("d", "/dags/d.py", data)
    assert [source.content_hash for source in sources] == [text_hash(data)]


def test_with_regexp_syntax_a_line_matches_any_part_of_a_path_below_its_folder(root):
    for name in ("a.py", "x_test.py", "lib/b.py", "team/c.py", "team/old/d.py", "old.py"):
        make(root, name)
    make(root, ".airflowignore", text="_test\\.py$  # of today\n^lib\n\n(\n")
    make(root, "team/.airflowignore", text="^old")
    make(root, ".asynschedignore", text="a.*\n")
    snapshot = scan(root, root / "home", syntax="regexp")
    assert sorted(path for path, file in snapshot.files.items() if not file.is_ignored) == ["old.py", "team/c.py"]
    assert [problem.partition(" (")[0] for problem in snapshot.problems] == [
        ".airflowignore, line 4: '(' is no regular expression"
    ]


@pytest.mark.parametrize(("n", "reason"), [(2_000, "no regular expression"), (5_000, "longer than any path")])
def test_a_regular_expression_that_is_too_deep_is_named_and_skipped(root, n, reason):
    make(root, "a.py", "b.py")
    make(root, ".airflowignore", text="(" * n + "\n" + "(" * (n // 2) + ")" * (n // 2) + "\n^b\n")
    snapshot = scan(root, root / "home", syntax="regexp")
    assert (snapshot.files["a.py"].is_ignored, snapshot.files["b.py"].is_ignored) == (False, True)
    for number, problem in enumerate(snapshot.problems, start=1):
        assert problem.startswith(f".airflowignore, line {number}: ")
        assert problem.endswith("the line is skipped")
    assert reason in snapshot.problems[0]
    assert len(snapshot.problems) == 2
