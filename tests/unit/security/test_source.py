"""What the source may not do: read a pickle, or run a model's own code that nobody asked for."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PICKLE_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}


def problems(source: str) -> list[str]:
    """What is wrong with a module, as ``line: what``."""
    return [f"{node.lineno}: {what}" for node in ast.walk(ast.parse(source)) for what in _problems_of(node)]


def _problems_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLE_MODULES:
        yield f"imports from {node.module}; `import pickle` and pickle.Pickler only"
    if isinstance(node, ast.Import):
        yield from (f"imports {name.name}" for name in node.names if name.name in PICKLE_MODULES - {"pickle"})
        yield from (
            f"imports {name.name} as {name.asname}" for name in node.names if name.name == "pickle" and name.asname
        )
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "pickle" and node.attr not in ("Pickler", "dump"):
            yield f"uses pickle.{node.attr}"
        if node.attr == "read_pickle":
            yield "reads a pickle"
    if isinstance(node, ast.Call):
        yield from _problems_of_call(node)


def _problems_of_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield "allow_pickle"
    if name.endswith(".from_pretrained") and "trust_remote_code" not in given:
        yield f"{name} without trust_remote_code"
    if isinstance(given.get("trust_remote_code"), ast.Constant) and not _is(given["trust_remote_code"], False):
        yield "trust_remote_code that does not come from the settings"
    if ".from_pretrained" in name and "Model" in name and not _is(given.get("use_safetensors"), True):
        yield f"{name} without use_safetensors=True: other weights are pickles"
    if None in given and name.endswith(".from_pretrained"):
        yield f"{name} with arguments that nobody sees here"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def modules(repository: Path) -> list[Path]:
    found = sorted((repository / "scripts").rglob("*.py"))
    assert len(found) > 50
    return found


def test_no_module_reads_a_pickle_or_trusts_remote_code_by_itself(repository):
    wrong = {
        str(path.relative_to(repository)): found
        for path in modules(repository)
        if (found := problems(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(f)",
        "import pickle\npickle.Unpickler(f)",
        "import pickle as p\np.loads(b)",
        "from pickle import loads",
        "import joblib",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "numpy.load(f, allow_pickle=True)",
        "pandas.read_pickle(f)",
        "AutoConfig.from_pretrained(f)",
        "AutoModel.from_pretrained(f, trust_remote_code=trust)",
        "AutoConfig.from_pretrained(f, trust_remote_code=True)",
        "AutoConfig.from_pretrained(f, trust_remote_code=trust, **options)",
        "make(trust_remote_code=True)",
    ],
)
def test_each_of_them_would_be_seen(source):
    assert problems(source)


def test_what_is_in_order_is_not_reported():
    source = "import pickle\nclass P(pickle.Pickler): pass\ntorch.load(f, weights_only=True)\n"
    source += "AutoModel.from_pretrained(f, trust_remote_code=trust, use_safetensors=True)\n"
    assert problems(source) == []
