"""LightGBM's text files: every index in a tree is checked, because LightGBM follows them without a look.

LightGBM gets a text that this module writes from what it has checked, and nothing else of the file.
"""

from dataclasses import dataclass

from . import ModelError

_NODES = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_MAX_LEAVES = 1 << 20
_CATEGORICAL = 1  # bit of decision_type


@dataclass(slots=True)
class _Tree:
    number: int
    fields: dict[str, str]

    def integers(self, name: str) -> list[int]:
        try:
            return [int(value) for value in self.fields.get(name, "").split()]
        except ValueError:
            raise self.wrong(f"{name} has what is no whole number") from None

    def one(self, name: str) -> int:
        values = self.integers(name)
        if len(values) != 1:
            raise self.wrong(f"{name} must be one number")
        return values[0]

    def wrong(self, why: str) -> ModelError:
        return ModelError(f"Tree {self.number} of the LightGBM model: {why}.")


def checked(text: str) -> str:
    """The same model, written again. Raises ModelError for an index that leads out of its tree, or around in it."""
    head, *rest = text.replace("\r\n", "\n").split("\nTree=")
    if not head.startswith("tree\n"):
        raise ModelError("The file does not begin as a LightGBM model.")
    header = _fields(head.split("\n")[1:], "The header", keep_flags=True)
    try:
        features = int(header["max_feature_idx"]) + 1
    except (KeyError, ValueError):
        raise ModelError("The LightGBM model does not say how many features it takes.") from None
    if not 0 < features <= 1 << 24:
        raise ModelError(f"The LightGBM model says that it takes {features} features.")
    header.pop("tree_sizes", None)  # offsets, by which trees would be read from other places than these
    trees, tail = [], ""
    for number, block in enumerate(rest):
        body, found, after = block.partition("\nend of trees")
        tail = f"end of trees{after}" if found else tail
        trees.append(_tree(number, body, features))
        if found and number != len(rest) - 1:
            raise ModelError("The LightGBM model has trees behind its end.")
    written = [f"{key}={value}" if value is not None else key for key, value in header.items()]
    return "\n".join(["tree", *written, "", *trees, tail or "end of trees", ""])


def _fields(lines: list[str], where: str, *, keep_flags: bool = False) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if key in found:
            raise ModelError(f"{where} of the LightGBM model has {key[:40]!r} twice.")
        if equals:
            found[key] = value
        elif keep_flags:
            found[key] = None  # type: ignore[assignment]  # `average_output` stands alone
        else:
            raise ModelError(f"{where} of the LightGBM model has a line without a value: {line[:40]!r}.")
    return found


def _tree(number: int, body: str, features: int) -> str:
    lines = body.split("\n")
    tree = _Tree(number, _fields(lines[1:], f"Tree {number}"))
    leaves = tree.one("num_leaves")
    if not 1 <= leaves <= _MAX_LEAVES:
        raise tree.wrong(f"it says that it has {leaves} leaves")
    if tree.fields.get("is_linear", "0").strip() not in ("0", ""):
        raise tree.wrong("linear trees are not served: train without linear_tree")
    if len(tree.fields.get("leaf_value", "").split()) != leaves:
        raise tree.wrong(f"leaf_value must have {leaves} numbers")
    if leaves > 1:
        _check_nodes(tree, leaves - 1, features)
    written = [f"{key}={value}" for key, value in tree.fields.items()]
    return "\n".join([f"Tree={number}", *written, "", ""])


def _check_nodes(tree: _Tree, nodes: int, features: int) -> None:
    for name in _NODES:
        if len(tree.fields.get(name, "").split()) != nodes:
            raise tree.wrong(f"{name} must have {nodes} numbers")
    if any(not 0 <= feature < features for feature in tree.integers("split_feature")):
        raise tree.wrong(f"split_feature has an index that is not below {features}")
    for name in ("left_child", "right_child"):
        for node, child in enumerate(tree.integers(name)):
            # Nodes are numbered as they were made, so that a child comes after its parent; leaves are ~index.
            if child >= nodes or (0 <= child <= node) or child < -(nodes + 1):
                raise tree.wrong(f"{name} of node {node} leads to {child}, which is no node after it and no leaf")
    _check_categories(tree)


def _check_categories(tree: _Tree) -> None:
    categorical = [bool(kind & _CATEGORICAL) for kind in tree.integers("decision_type")]
    count = tree.one("num_cat") if "num_cat" in tree.fields else 0
    if count < 0 or (any(categorical) and not count):
        raise tree.wrong("it decides by categories and has none")
    if not count:
        return
    bounds, words = tree.integers("cat_boundaries"), tree.fields.get("cat_threshold", "").split()
    rising = len(bounds) == count + 1 and bounds[0] == 0 and bounds == sorted(bounds)
    if not rising or bounds[-1] != len(words):
        raise tree.wrong("cat_boundaries do not fit cat_threshold")
    for node, text in enumerate(tree.fields["threshold"].split()):
        if categorical[node] and not 0 <= _whole(tree, text) < count:
            raise tree.wrong(f"threshold of node {node} names a category set that is not there")


def _whole(tree: _Tree, text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise tree.wrong("threshold has what is no number") from None
