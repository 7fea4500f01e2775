"""Experiment files: what loads, and the one line that every bad file gives."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numeric import experiment as experiments
from numeric import prior as priors
from numeric.errors import ExperimentError, InputError
from numeric.experiment import FlowSettings, SGDSettings, load_experiment, parse_experiment
from numeric.prior import DiscretePrior, GaussianPrior
from numeric.task import Attention, State, Task

VALID = """\
[task]
tokens = 5
[task.prior]
kind = "gaussian"
mean = [0.0, 0.0]
covariance = [[4.0, 0.0], [0.0, 2.0]]
[attention]
activation = "b-softmax"
heads = 2
[state]
m = [[0.1, -0.2], [0.3, 0.0]]
r = [[0.5, 0.1], [0.1, 0.5]]
b = [0.0, 0.1]
[flow]
eta = 0.1
dimension = 100
tau_max = 9.0
kappa = 0.0
seed = 7
[sgd]
dimension = 50
batch = 2
step = 0.01
runs = 3
seed = 11
"""
R_AND_B = "r = [[0.5, 0.1], [0.1, 0.5]]\nb = [0.0, 0.1]\n"
PRIOR = 'kind = "gaussian"\nmean = [0.0, 0.0]\ncovariance = [[4.0, 0.0], [0.0, 2.0]]\n'


def prior(lines: str) -> str:
    """The valid file with other lines, separated by semicolons, in [task.prior]."""
    return VALID.replace(PRIOR, lines.replace("; ", "\n") + "\n")


def refuse(load: Callable[[], object], file: str, key: str, found: str, wanted: str) -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(ExperimentError) as caught:
        load()
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.startswith(f"{file}: {key}: found {found}"), line
    assert wanted in line.partition(", expected ")[2], line


def test_everything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(VALID)
    expected = experiments.Experiment(
        name="mine",
        path=path,
        task=Task(5, GaussianPrior(np.zeros(2), np.diag([4.0, 2.0]))),
        attention=Attention("b-softmax", 2),
        state=State(*map(np.array, ([[0.1, -0.2], [0.3, 0]], [[0.5, 0.1], [0.1, 0.5]], [0, 0.1]))),
        flow=FlowSettings(0.1, 100, 9.0, 0.0, 7),
        sgd=SGDSettings(50, 2, 0.01, 3, 11),
    )
    assert load_experiment(path) == load_experiment(str(path)) == expected


def test_defaults() -> None:
    made = parse_experiment(VALID[: VALID.index("[state]")], "short")
    assert (made.name, made.path, made.state) == ("short", None, None)
    assert made.flow == FlowSettings(0.1, 1000, 100.0, 0.0, 0)
    assert made.sgd == SGDSettings(500, 1, None, 16, 1)
    state = parse_experiment(VALID.replace(R_AND_B, ""), "x").state
    assert state == State(np.array([[0.1, -0.2], [0.3, 0.0]]), np.zeros((2, 2)), b=np.zeros(2))


def test_examples() -> None:
    query, *others = experiments.example_names()
    assert (query, *others) == ("query-recovery", "two-features", "two-features-bayes")
    plain, bayes = map(load_experiment, others)
    assert plain.state is not None
    assert bayes.state is not None
    assert (plain.name, plain.path) == ("two-features", None)
    assert plain.attention == Attention("softmax", 4)
    assert plain.task == bayes.task == Task(5, GaussianPrior(np.zeros(2), np.diag([4.0, 2.0])))
    assert bayes.attention == Attention("b-softmax", 4)
    assert plain.state == State(bayes.state.m, 0.01 * np.eye(4))
    assert bayes.state.b is not None
    assert plain.flow == FlowSettings(0.1, 1000, 100.0, 1.0, 7)
    assert bayes.flow == FlowSettings(0.1, 1000, 60.0, 1.0, 7)
    assert plain.sgd == bayes.sgd == SGDSettings(500, 1, None, 16, 11)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            'kind = "discrete"; support = [[1, 2], [0, 1]]; probabilities = [0.25, 0.75]',
            DiscretePrior(np.array([[1, 2], [0, 1]]), np.array([0.25, 0.75])),
        ),
        (
            'kind = "mixture"; weights = [1]; means = [[1, 2]]; covariances = [[[1, 0], [0, 0]]]',
            priors.MixturePrior(np.ones(1), np.array([[1, 2]]), np.diag([1, 0])[None]),
        ),
        ('kind = "isotropic"; features = 2; variance = 3', priors.isotropic(2, 3)),
        ('kind = "flipped-spike"; directions = [[1, 2]]', priors.flipped_spike([[1, 2]])),
    ],
)
def test_prior_kinds(lines: str, expected: priors.Prior) -> None:
    assert parse_experiment(prior(lines), "x").task.prior == expected


def test_samples_are_relative_to_the_file(tmp_path: Path) -> None:
    samples = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]])
    np.save(tmp_path / "s.npy", samples.astype(np.float32))
    (tmp_path / "s.csv").write_bytes(b"\xef\xbb\xbf1, 2\r\n3,4.0\r\n\r\n5,6.5\r\n")
    expected = DiscretePrior(samples, np.full(3, 1 / 3))
    for file in ("s.npy", "s.csv"):
        (tmp_path / "e.toml").write_text(prior(f'kind = "empirical"; file = "{file}"'))
        assert load_experiment(tmp_path / "e.toml").task.prior == expected
        absolute = prior(f"kind = 'empirical'; file = '{tmp_path / file}'")
        assert parse_experiment(absolute, "x").task.prior == expected


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_bytes(b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode())
    assert load_experiment(tmp_path / "w.toml").task == parse_experiment(VALID, "x").task


HUGE = "1" + "0" * 400

# The whole text, the key, the start of what was found, a part of what is expected.
BAD_TEXTS = [
    ("", "task", "nothing", "a table"),
    ("# nothing but a comment", "task", "nothing", "a table"),
    ("tokens = ", "file", "invalid value", "TOML"),
    (VALID + "[task]\n", "file", "cannot declare", "TOML"),
    ("a = 1\na = 2\n", "file", "cannot overwrite a value", "TOML"),
    ("a = 'x\ny'\n", "file", "", "TOML"),
    ("a = \x00\n", "file", "invalid value", "TOML"),
    ("a = " + "9" * 5000, "file", "exceeds the limit", "TOML"),
    ("a = " + "[" * 10_000, "file", "maximum recursion depth", "TOML"),
    (VALID + "[flows]\n", "flows", "an unknown key", "did you mean 'flow'?"),
    ('"a\\nb" = 1\n' + VALID, "a b", "an unknown key", "one of 'task', 'attention'"),
    ("lambda = 1\n" + VALID, "lambda", "an unknown key", "one of 'task', 'attention'"),
    ("task = 5\n", "task", "5", "a table"),
    ("task = [{}]\n", "task", "[{}]", "a table"),
    ("flow = 1\n" + VALID[: VALID.index("[flow]")], "flow", "1", "a table"),
    ("[task]\ntokens = 5\n", "task.prior", "nothing", "a table"),
    (VALID[: VALID.index("[attention]")], "attention", "nothing", "a table"),
]

# Key | new line in place of that key's line | start of what was found | a part of what is expected
# [| the key of the message, if it is another one]. HUGE, DEEP and MANY are written out below.
BAD_LINES = """
task.tokens | | nothing | a whole number >= 1
task.tokens | tokens = 0 | 0 | a whole number >= 1
task.tokens | tokens = 2.5 | 2.5 | a whole number >= 1
task.tokens | tokens = true | True | a whole number >= 1
task.tokens | tokens = "5" | '5' | a whole number >= 1
task.tokens | tokens = 1979-05-27 | datetime.date | a whole number >= 1
task.tokens | tokens = HUGE | 1000 | a whole number >= 1 and <= 92233
task.tokens | token = 5 | an unknown key | did you mean 'tokens'? | task.token
task.prior.kind | | nothing | one of 'gaussian', 'discrete', 'mixture'
task.prior.kind | kind = "gausian" | 'gausian' | did you mean 'gaussian'?
task.prior.kind | kind = "discrete" | an unknown key | one of 'support', | task.prior.mean
task.prior.mean | support = [[1]] | an unknown key | one of 'mean', | task.prior.support
task.prior.mean | mean = [0, true] | True at [1] | finite numbers
task.prior.mean | mean = [0, nan] | an array of shape (2,) with nan at [1] | finite numbers
task.prior.mean | mean = [0, HUGE] | 1000 | finite numbers
task.prior.covariance | covariance = [4, 2] | an array of shape (2,) | shape (2, 2)
task.prior.covariance | covariance = [[1, 0], [0]] | rows of unequal length | shape (2, 2)
task.prior.covariance | covariance = [[1, 2], [2, 1]] | an eigenvalue -0.5 | semi-definite
task.prior.covariance | covariance = [[1, 1], [0, 1]] | an asymmetry 1 | a symmetric
task.prior.covariance | covariance = DEEP | [[[ | shape (2, 2)
task.prior.covariance | covaraince = [] | an unknown key | 'covariance'?) | task.prior.covaraince
attention.activation | activation = "bsoftmax" | 'bsoftmax' | did you mean 'b-softmax'?
attention.activation | activation = "softmax" | an array of shape (2,) | none, since | state.b
attention.heads | | nothing | a whole number >= 1
attention.heads | head = 2 | an unknown key | did you mean 'heads'? | attention.head
attention.heads | heads = 3 | an array of shape (2, 2) | shape (..., 3, 2) | state.m
state.m | | nothing | finite numbers in shape (any, any)
state.m | m = [[0.1], [0.3]] | an array of shape (2, 1) | shape (..., 2, 2)
state.m | m = [[[1, 2], [3, 0]]] | an array of shape (1, 2, 2) | shape (any, any)
state.m | m = MANY | an array of shape (1001, 2) | at most 1000 heads
state.m | m = [[0.1, -0.2]] | an array of shape (2, 2) | shape (1, 1) | state.r
state.r | r = [[1e-9, 2e-9], [2e-9, 1e-9]] | an eigenvalue -0.5 | semi-definite
state.b | b = [0.0] | an array of shape (1,) | shape (2,)
state.b | v = [1, 1] | an array of shape (2,) | none, since b-softmax | state.v
flow.eta | eta = 0 | 0 | a finite number > 0
flow.eta | eta = inf | inf | a finite number > 0
flow.eta | eta = HUGE | 1000 | a finite number > 0
flow.dimension | dimension = 3 | 3 | a whole number >= 4
flow.tau_max | tau_max = true | True | a finite number > 0
flow.tau_max | taumax = 1 | an unknown key | did you mean 'tau_max'? | flow.taumax
flow.kappa | kappa = -1e-9 | -1e-09 | a finite number >= 0
sgd.dimension | dimension = 3 | 3 | a whole number >= 4
sgd.step | step = -0.01 | -0.01 | a finite number > 0
sgd.runs | runs = "three\\nlines\\nhere" | 'three | a whole number >= 1
"""

# Lines of [task.prior], separated by ; | key within it | found | expected
BAD_PRIORS = """
kind = "discrete"; support = [[1], [2]]; probabilities = [0.2, 0.2] | probabilities | a sum | sum
kind = "discrete"; support = [1, 2] | support | an array of shape (2,) | shape (any, any)
kind = "mixture"; weights = [1]; means = [[0, 0]]; covariances = [1] | covariances | an | 1, 2, 2)
kind = "isotropic"; features = 10000000; variance = 1 | features | 1000 | <= 1000
kind = "flipped-spike"; directions = [] | directions | an array of shape (0,) | shape (any, any)
kind = "empirical" | file | nothing | the name of a .npy or .csv file
kind = "empirical"; file = "a.txt" | file | 'a.txt' | the name of a .npy or .csv file
kind = "empirical"; file = "no.csv" | file | 'no.csv': no such file | a readable .npy or .csv file
kind = "empirical"; file = "\\u0000.npy" | file | '\\x00.npy': embedded null | a readable .npy
kind = "empirical"; directory = "/" | directory | an unknown key | one of 'file'
"""


def bad_line(row: str) -> tuple[str, str, str, str]:
    key, line, found, wanted, *other = (cell.strip() for cell in row.split("|"))
    for word, value in (("HUGE", HUGE), ("DEEP", "[" * 80 + "]" * 80), ("MANY", [[0, 0]] * 1001)):
        line = line.replace(word, str(value))
    table, _, name = key.rpartition(".")
    head, middle, tail = VALID.partition(f"[{table}]\n")
    old = next(old for old in tail.splitlines() if old.startswith(f"{name} ="))
    return head + middle + tail.replace(old, line, 1), other[0] if other else key, found, wanted


def bad_prior(row: str) -> tuple[str, str, str, str]:
    lines, key, found, wanted = (cell.strip() for cell in row.split("|"))
    return prior(lines), f"task.prior.{key}", found, wanted


BAD = [
    *BAD_TEXTS,
    *map(bad_line, BAD_LINES.strip().splitlines()),
    *map(bad_prior, BAD_PRIORS.strip().splitlines()),
]


@pytest.mark.parametrize(("text", "key", "found", "wanted"), BAD, ids=range(len(BAD)))
def test_bad_files(tmp_path: Path, text: str, key: str, found: str, wanted: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, newline="")
    refuse(lambda: load_experiment(path), str(path), key, found, wanted)
    refuse(lambda: parse_experiment(text, "bad"), "bad", key, found, wanted)


OLD = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1L,)}\n"  # numpy warns of the L
BAD_SAMPLES: list[tuple[str, bytes, str, str]] = [
    ("s.csv", b"theta1,theta2\n1,2\n", "'theta1,theta2' in line 1 of s.csv", "no header line"),
    ("s.csv", b"1,2\n3,\n", "'3,' in line 2 of s.csv", "numbers separated by commas"),
    ("s.csv", b"1;2\n", "'1;2' in line 1 of s.csv", "numbers separated by commas"),
    ("s.csv", b"1,2\n3\n", "rows of unequal length", "shape (any, any)"),
    ("s.csv", b"1,nan\n", "an array of shape (1, 2) with nan at [0, 1]", "finite numbers"),
    ("s.csv", b"1,1e999\n", "an array of shape (1, 2) with inf at [0, 1]", "finite numbers"),
    ("s.csv", b"", "an array of shape (0,)", "shape (any, any)"),
    ("s.csv", b"\xff\xfe1,2", "'s.csv': 'utf-8' codec", "a readable .npy or .csv file"),
    ("s.npy", b"", "'s.npy': ", "a readable .npy or .csv file"),
    ("s.npy", b"PK\x03\x04 not a zip", "'s.npy': ", "a readable .npy or .csv file"),
    ("s.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '((((\n", "'s.npy': ", "a readable .npy"),
    ("s.npy", b"\x93NUMPY\x01\x00%c\x00" % len(OLD) + OLD + bytes(8), "an array of shape (1,)", ""),
    ("s.npy", b"\x80\x04K\x01.", "'s.npy': ", "a readable .npy or .csv file"),
]


@pytest.mark.parametrize(("file", "data", "found", "wanted"), BAD_SAMPLES)
def test_bad_sample_files(tmp_path: Path, file: str, data: bytes, found: str, wanted: str) -> None:
    (tmp_path / file).write_bytes(data)
    text, key = prior(f'kind = "empirical"; file = "{file}"'), "task.prior.file"
    refuse(lambda: parse_experiment(text, "e", tmp_path), "e", key, found, wanted)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (np.array([1.0, 2.0]), "an array of shape (2,)"),
        (np.zeros((0, 2)), "an array of shape (0, 2)"),
        (np.array([["a"]]), "an array of shape (1, 1) and type <U1"),
        (np.array([[{}]]), "'s.npy': object arrays cannot be loaded"),
        (np.array([[1j]]), "an array of shape (1, 1) and type complex128"),
        (np.ones((3, 5)), None),
    ],
    ids=range(6),
)
def test_bad_sample_arrays(tmp_path: Path, samples: Any, found: str | None) -> None:
    np.save(tmp_path / "s.npy", samples, allow_pickle=True)
    text = prior('kind = "empirical"; file = "s.npy"')
    key, words = ("task.prior.file", found) if found else ("state.m", "an array of shape (2, 2)")
    refuse(lambda: parse_experiment(text, "e", tmp_path), "e", key, words, "")


def test_bad_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.toml").write_bytes(bytes(range(128, 256)))
    cases: list[tuple[Any, str, str, str]] = [
        (
            "no.toml",
            "no.toml",
            "no such file",
            "a TOML file, or an example: one of 'query-recovery'",
        ),
        ("two-featurs", "two-featurs", "no such file", "did you mean 'two-features'?"),
        (tmp_path, str(tmp_path), "is a directory", "a TOML file"),
        ("", "", "is a directory", "a TOML file"),
        ("a\0b", "a b", "embedded null byte", "a TOML file"),
        ("x" * 5000, "x" * 5000, "file name too long", "a TOML file"),
        (5, "5", "expected str", "a TOML file"),
        ("junk.toml", "junk.toml", "byte 0x80 at position 0", "UTF-8 text"),
    ]
    for path, file, found, wanted in cases:
        refuse(partial(load_experiment, path), file, "file", found, wanted)


def test_experiment_made_in_code_names_its_keys() -> None:
    task, attention = Task(5, priors.isotropic(2, 1)), Attention("softmax", 2)
    with pytest.raises(InputError, match=r"^state\.m: found an array of shape \(1, 2\)"):
        experiments.Experiment("x", None, task, attention, State(np.ones((1, 2)), np.eye(1)))
    with pytest.raises(InputError, match=r"^flow\.dimension: found 3, expected a whole number"):
        experiments.Experiment("x", None, task, attention, flow=FlowSettings(dimension=3))


VALUES = f'true "x" nan -inf -1 0 2.5 {HUGE} [] [[]] {{}} 1979-05-27'.split()
LINES = VALID.splitlines()


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid file after a few deletions, repetitions, swaps, other values and other characters."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(lines) - 1))
        other = draw(st.integers(0, len(lines) - 1))
        key = lines[place].partition("=")[0]
        change = draw(st.integers(0, 4))
        if change == 0 and len(lines) > 1:
            del lines[place]
        elif change == 1:
            lines.insert(place, lines[other])
        elif change == 2:
            lines[place], lines[other] = lines[other], lines[place]
        elif change == 3:
            lines[place] = f"{key}= {draw(st.sampled_from(VALUES))}"
        else:
            column = draw(st.integers(0, len(lines[place])))
            text = draw(st.text(max_size=3))
            lines[place] = lines[place][:column] + text + lines[place][column + 1 :]
    return "\n".join(lines)


def loads_or_gives_one_line(text: str) -> bool:
    with warnings.catch_warnings(action="error"), np.errstate(all="raise"):
        try:
            parse_experiment(text, "fuzz")
        except ExperimentError as error:
            line = str(error)
            assert len(line.splitlines()) == 1
            assert line.startswith("fuzz: ")
            assert ": found " in line.partition(", expected ")[0]
            return False
    return True


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(mutated())
@example(VALID.replace("4.0", "1e308").replace("2.0", "1e308"))
@example(VALID.replace("0.5", "5e-324").replace("0.1], [0.1", "0.0], [0.0"))
def test_mutated_files_load_or_give_one_line(text: str) -> None:
    loads_or_gives_one_line(text)


def test_deleting_any_line_is_never_silent() -> None:
    """A file that lost a line loads only where that key has a default."""
    optional = ("r", "b", "et", "di", "ta", "ka", "se", "st")
    for index, line in enumerate(LINES):
        text = "\n".join(LINES[:index] + LINES[index + 1 :])
        assert loads_or_gives_one_line(text) == line.startswith(optional), line


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(place=st.integers(0, len(VALID) - 1), junk=st.binary(max_size=4), cut=st.integers(0, 4))
def test_mutated_bytes(
    tmp_path_factory: pytest.TempPathFactory, place: int, junk: bytes, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    content = VALID.encode()
    path.write_bytes(content[:place] + junk + content[place + cut :])
    try:
        load_experiment(path)
    except ExperimentError as error:
        assert len(str(error).splitlines()) == 1
        assert str(error).startswith(f"{path}: ")
