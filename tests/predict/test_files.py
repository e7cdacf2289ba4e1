"""Files of models that would do harm: refused with a sentence before their runtime reads them."""

import os
from pathlib import Path

import pytest

from slipway_predict.formats import ModelError
from slipway_predict.formats.lightgbm_check import checked
from slipway_predict.formats.onnx_check import check_external_data
from slipway_process.model_folder import classic as model_file
from slipway_process.model_folder.checkpoint import CheckpointError
from tests.predict import onnx_models

TREE = """Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
split_gain=1 1
threshold=0.5 0.5
decision_type=2 2
left_child=1 -1
right_child=-2 -3
leaf_value=0.1 0.2 0.3
shrinkage=1

"""
MODEL = (
    f"tree\nversion=v4\nnum_class=1\nmax_feature_idx=1\nobjective=regression\ntree_sizes=200\n\n{TREE}\nend of trees\n"
)


def test_a_sound_lightgbm_model_passes_without_the_offsets_of_its_trees() -> None:
    text = checked(MODEL)
    assert "tree_sizes" not in text and "left_child=1 -1" in text


@pytest.mark.parametrize(
    "before, after",
    [
        ("split_feature=0 1", "split_feature=0 7"),
        ("split_feature=0 1", "split_feature=-1 1"),
        ("left_child=1 -1", "left_child=9 -1"),
        ("left_child=1 -1", "left_child=0 -1"),
        ("left_child=1 -1", "left_child=1 0"),
        ("right_child=-2 -3", "right_child=-2 -9"),
        ("right_child=-2 -3", "right_child=-2"),
        ("leaf_value=0.1 0.2 0.3", "leaf_value=0.1"),
        ("decision_type=2 2", "decision_type=1 2"),
        ("num_leaves=3", "num_leaves=99999999"),
        ("num_leaves=3", "num_leaves=3\nnum_leaves=2"),
        ("max_feature_idx=1", "max_feature_idx=-5"),
        ("num_cat=0", "num_cat=1\ncat_boundaries=0 9\ncat_threshold=1"),
        ("num_cat=0", "num_cat=0\nis_linear=1"),
    ],
)
def test_a_lightgbm_index_that_leads_astray_is_refused(before: str, after: str) -> None:
    assert before in MODEL
    with pytest.raises(ModelError):
        checked(MODEL.replace(before, after))


def test_external_data_beside_the_model_is_taken(tmp_path: Path) -> None:
    check_external_data(onnx_models.with_external_data(tmp_path, "weights.data"))


@pytest.mark.parametrize("location", ["../weights.data", "/etc/passwd", "a/../../b", "missing.data", ""])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelError):
        check_external_data(onnx_models.with_external_data(tmp_path, location))


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_external_data_that_is_a_link_is_refused(tmp_path: Path, link: object) -> None:
    path = onnx_models.with_external_data(tmp_path, "linked.data")
    assert callable(link)
    link(tmp_path / "weights.data", tmp_path / "linked.data")
    with pytest.raises(ModelError):
        check_external_data(path)


def test_what_is_no_onnx_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content in (b"\x3a\xff\xff\xff\xff\x0f", b"\x80\x04\x95", b"\x3a\x05\x0a"):
        path.write_bytes(content)
        with pytest.raises(ModelError):
            check_external_data(path)


def test_an_estimator_with_types_that_skops_does_not_trust_is_refused(tmp_path: Path) -> None:
    import skops.io
    from sklearn.preprocessing import FunctionTransformer

    from slipway_predict.formats.skops_model import load

    path = tmp_path / "model.skops"
    skops.io.dump(FunctionTransformer(os.system), path)
    with pytest.raises(ModelError, match="could run code"):
        load(path, 1)


def test_of_several_models_the_one_called_model_is_taken_and_pickles_beside_it_are_not_read(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.ubj", "notes.txt", "config.json", "model.joblib"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="several models"):
        model_file.find(tmp_path)
    assert model_file.find(tmp_path, "xgboost").path.name == "b.ubj"
    (tmp_path / "model.skops").write_bytes(b"")
    assert model_file.find(tmp_path).format == "skops"
