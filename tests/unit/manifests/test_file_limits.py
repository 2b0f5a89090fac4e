"""Launch files that would cost time, memory or a fault: each ends soon, with a refusal or with what is left of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servelint.__main__ import main
from servelint.errors import ManifestError
from servelint.launch import written
from servelint.launch.invocation import Invocation
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import invocations, read
from servelint.manager import Plugins

POD = "kind: Deployment\nspec: {template: {spec: {containers: [%s]}}}\n"
LIST = "L = [" + ", ".join("1" for _ in range(200)) + "]\n"
WIDE = "m: &a {" + ",".join(f"k{i}: 1" for i in range(20_000)) + "}\n"
FILES = {
    "here-documents of one line": ("x.sh", "vllm serve m " + "a " * 9_000 + "<<A " * 100_000),
    "a variable of many words": ("x.sh", 'X="' + "-a " * 30_000 + '"\nvllm serve m ' + "$X " * 15_000),
    "a long variable": ("x.sh", "X=" + "a" * 90_000 + "\nvllm serve m " + "$X " * 15_000),
    "unknown flags": ("x.sh", "vllm serve m " + " ".join(f"--max-num-seqz{i}" for i in range(15_000))),
    "one flag again and again": ("x.sh", "vllm serve m " + " ".join(f"--max-model-len {i}" for i in range(9_000))),
    "quotations in JSON": ("x.sh", "vllm serve m --speculative-config '" + '"' + '\\"' * 300_000 + "'"),
    "a wide mapping by aliases": ("x.yaml", WIDE + POD % ",".join(["*a"] * 40_000)),
    "one script in many containers": (
        "x.yaml",
        'm: &s "' + "aa bb cc;" * 5_000 + '"\n' + POD % ",".join(["{image: vllm, command: [sh, -c, *s]}"] * 2_000),
    ),
    "words that stand nowhere": (
        "x.yaml",
        POD % ('{image: vllm/vllm-openai, command: [sh, -c, "' + "\\x61a " * 15_000 + "x" * 800_000 + '"]}'),
    ),
    "blank lines by aliases": (
        "x.yaml",
        "m: &a |+\n  x\n" + "\n" * 300_000 + POD % ("{image: vllm, args: [" + ",".join(["*a"] * 60_000) + "]}"),
    ),
    "a document in many values": (
        "x.yaml",
        'x: &x "engine_config: {a: [' + "1," * 20_000 + ']}"\nkind: ConfigMap\ndata: {'
        + ",".join(f"k{i}: *x" for i in range(20_000)) + "}\n",
    ),
    "many texts with documents": (
        "x.yaml", "kind: ConfigMap\ndata: {" + ",".join(f'k{i}: "engine_config: 1"' for i in range(25_000)) + "}\n"
    ),
    "many values": ("x.yaml", "{" + ",".join("a" for _ in range(400_000)) + "}"),
    "many documents": ("x.yaml", "---\n" * 200_000),
    "open templates": ("x.yaml", "a: [\n" + "{{ .Values" * 90_000),
    "blanks in properties": ("x.properties", "option.model_id=x" + " " * 300_000 + "y"),
    "blank lines in pbtxt": ("x.pbtxt", "\n" * 500_000 + "x"),
    "blanks in pbtxt": ("x.pbtxt", 'key:"a"' + " " * 300_000 + "x"),
    "blanks in TOML": ("x.toml", '[tool.bentoml.build.args]\nmodel_id="x" ' + " " * 300_000 + "# y\n"),
    "deep TOML": ("x.toml", "[tool.bentoml.build.args]\nmodel_id=" + "[" * 100_000),
    "places in Python": (
        "x.py",
        "import vllm\nx=[" + ",".join('"vllm serve a"' for _ in range(5_000)) + "]\n" + "#\n" * 90_000,
    ),
    "mappings that double": (
        "x.py", 'import vllm\na={"x":1}\n' + 'a={"x":a,"y":a}\n' * 60 + 'LLM(model="m",x=a)\nb=f"{a}"\n'
    ),
    "lists that double": ("x.py", 'import vllm\na=["vllm","serve"]\n' + "a=[*a,*a]\n" * 60 + "a=a+a\n" * 3_000),
    "texts in loops": (
        "x.py", f'import vllm\n{LIST}a="' + "x " * 40_000 + 'vllm"\nfor i in L:\n for j in L:\n  f"{a}{i}{j}"\n'
    ),
    "a list within itself": ("x.py", 'import vllm,json\na=["vllm"]\na.append(a)\njson.dumps(a)\nstr(a)\n'),
    "a mapping within itself": ("x.py", 'import vllm\nd={"a":1}\nd["x"]=d\nLLM(model="m",hf_overrides=d)\n'),
    "an endless number": ("x.py", "import vllm\nx=0x" + "f" * 9_000 + '\ny=f"{x}"\nfloat(x)\nLLM(model="m",n=x)\n'),
    "an infinite integer": ("x.py", "import vllm\nint(1e999)\n"),
    "carriage returns": ("x.py", 'import vllm\rx=["vllm","serve","m"]\r'),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_it_ends_soon_and_is_no_readers_fault(what: str, plugins: Plugins) -> None:
    name, text = FILES[what]
    began = time.process_time()
    try:
        for invocation in invocations(ManifestFile(name, text, name), plugins):
            read(invocation, plugins).named_troubles()
    except ManifestError:
        pass
    faults = [str(f) for f in plugins.faults]
    plugins.faults.clear()
    assert not faults
    assert time.process_time() - began < 2.0


def one(name: str, text: str, plugins: Plugins) -> Invocation:
    (found,) = invocations(ManifestFile(name, text), plugins)
    return found


def test_a_value_in_python_stands_where_the_file_has_it(plugins: Plugins) -> None:
    text = 'import vllm\rx = "é"; y = ["vllm", "serve", "m"]\n'
    found = one("x.py", text, plugins)
    at = text.index('"m"') + 1
    place = found.commands[0][2].place
    assert (place.line, place.column, place.end_column) == (1, at, at + 3)


def test_an_unknown_number_is_a_variable_in_a_text(plugins: Plugins) -> None:
    found = one("x.py", 'd = {}\nx = f"vllm serve m --max-model-len {d}"\n', plugins)
    assert [w.text for w in found.commands[0]][-1] == "${d}"


def test_a_variable_too_many_is_said(plugins: Plugins) -> None:
    text = "X=" + "a" * 90_000 + "\nvllm serve m " + "$X " * 9 + "--max-model-len $X\n"
    launched = read(one("x.sh", text, plugins), plugins)
    assert [t.about for t in launched.troubles if t.kind == "unresolved"] == ["--max-model-len"]


def test_a_broken_line_is_the_one_that_is_shown() -> None:
    with pytest.raises(ManifestError) as refused:
        _ = ManifestFile("x.yaml", "a: 1\u2028b: 2\nc: [\n").documents
    assert refused.value.place.line <= 3


MODEL = (
    "kind: Deployment\nmetadata: {name: %s}\nspec: {template: {spec: {containers: "
    "[{name: c, image: vllm/vllm-openai, args: [--model, %s]}]}}}\n"
)


def test_equal_names_give_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text("---\n".join((MODEL % ("chat", "a/one"), MODEL % ("chat", "a/two"))))
    (tmp_path / "specs").mkdir()
    assert main(["import", "two.yaml", "--output", "specs"]) == 0
    held = {p.name: "a/two" in p.read_text() for p in (tmp_path / "specs").iterdir()}
    assert held == {"chat-c.toml": False, "chat-c-2.toml": True}
    # What import wrote it may write again, when it is told to.
    assert main(["import", "two.yaml", "--output", "specs", "--force"]) == 0


def test_a_manifests_name_overwrites_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text("vllm serve m\n")
    (tmp_path / "x.toml").write_text("[precious]\n")
    assert main(["import", "x.sh", "--output", "."]) == 2
    assert (tmp_path / "x.toml").read_text() == "[precious]\n"
    assert "was not written by servelint import" in capsys.readouterr().err


def test_every_spec_begins_alike(plugins: Plugins) -> None:
    text = written.spec(read(one("x.sh", "vllm serve m\n", plugins), plugins), name="x.sh")
    assert text.startswith(written.WRITTEN)


def test_an_index_of_many_digits_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(MODEL % ("chat", "m"))
    path = "1" * 5_000
    (tmp_path / "s.toml").write_text(
        'servelint = 1\n[model]\nid = "m"\n[engine]\nname = "vllm"\n'
        f'args_from = {{ file = "x.yaml", path = "{path}" }}\n'
    )
    assert main(["check", "s.toml"]) == 1
    assert "has nothing at" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "status"), [(200, 0), (201, 2)])
def test_engines_beyond_what_is_judged_are_no_silence(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one = "  s{}: {{image: 'vllm/vllm-openai:v0.11.0', command: [--model, Qwen/Qwen3-8B, --max-model-len, '4096']}}\n"
    other = "  p{}: {{image: 'nginx:1'}}\n"
    text = "services:\n" + "".join(one.format(i) for i in range(number)) + "".join(other.format(i) for i in range(300))
    (tmp_path / "compose.yaml").write_text(text, encoding="utf-8")
    assert main(["check", "compose.yaml", "--concise"]) == status
    said = capsys.readouterr()
    assert ("more than 200 engines" in said.out + said.err) is (status == 2)


@pytest.mark.parametrize("ending", ["\n", "\x85", "\u2028", "\r"])
def test_places_inside_a_text_whose_lines_end_otherwise(ending: str, plugins: Plugins) -> None:
    text = (
        "kind: ConfigMap\nmetadata: {name: c}\ndata:\n  inference_config.yaml: |\n    vllm:\n"
        "      max-model-len: 8192\n      gpu-memory-utilization: 0.9\n"
        "---\nkind: Workspace\nmetadata: {name: w}\nresource: {instanceType: Standard_ND96isr_H100_v5, count: 2}\n"
        "inference: {config: c, preset: {name: llama-3.3-70b-instruct}}\n"
    ).replace("\n", ending)
    for invocation in invocations(ManifestFile("kaito.yaml", text, "kaito.yaml"), plugins):
        launched = read(invocation, plugins)
        places = [s.place for s in launched.settings.values()] + [t.place for t in launched.troubles]
        assert places
        assert all(1 <= place.line <= place.end_line <= text.count("\n") + 1 for place in places)
