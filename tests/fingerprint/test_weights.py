from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from models import tensors, write_model, write_shards
from safetensors import safe_open
from safetensors.numpy import save_file

from detdiag.errors import DetdiagError
from detdiag.fingerprint.gguf import BLOCKS
from detdiag.fingerprint.weights import hash_weights, read_headers


def test_tensor_digests_are_xxh3_of_the_bytes_the_safetensors_library_reads(tmp_path: Path) -> None:
    write_model(tmp_path, shards=2)
    found = hash_weights(tmp_path)
    expected = {}
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "numpy") as opened:
            for name in opened.keys():
                array = opened.get_tensor(name)
                digest = xxhash.xxh3_128_hexdigest(array.tobytes())
                expected[name] = [{"float32": "F32", "float16": "F16"}[str(array.dtype)],
                                  list(array.shape), digest]  # fmt: skip
    assert found["tensors"] == expected
    assert found["count"] == 10 and found["bytes"] == sum(a.nbytes for a in tensors().values())


def test_the_digest_does_not_depend_on_sharding_order_or_threads(tmp_path: Path) -> None:
    one = hash_weights(write_model(tmp_path / "one"), threads=1)
    three = hash_weights(write_model(tmp_path / "three", shards=3), threads=4)
    turned = dict(reversed(tensors().items()))
    back = hash_weights(write_model(tmp_path / "back", turned))
    assert one["digest"] == three["digest"] == back["digest"]
    assert one["files"] != three["files"]


@pytest.mark.parametrize("change", ["bit", "name", "shape", "dtype", "swap"])
def test_every_change_of_values_or_names_changes_the_digest(tmp_path: Path, change: str) -> None:
    weights = tensors()
    first, second = list(weights)[:2]
    if change == "bit":
        weights[first].view(np.uint32)[0, 0] ^= 1
    elif change == "name":
        weights["other"] = weights.pop(first)
    elif change == "shape":
        weights[first] = weights[first].reshape(6, 4)
    elif change == "dtype":
        weights[first] = weights[first].view(np.int32)
    else:
        weights[first], weights[second] = weights[second], weights[first]
    before = hash_weights(write_model(tmp_path / "a"))
    after = hash_weights(write_model(tmp_path / "b", weights))
    assert before["digest"] != after["digest"]
    same_values = change in ("name", "swap")
    assert (before["values_digest"] == after["values_digest"]) is same_values


def test_torch_checkpoints_equal_their_safetensors_without_unpickling_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = {name: torch.from_numpy(value.copy()) for name, value in tensors().items()}
    base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    weights["transposed"] = base.t()
    weights["row"] = base[2]
    bins = tmp_path / "bin"
    bins.mkdir()
    torch.save(weights, bins / "pytorch_model.bin")
    flat = tmp_path / "flat"
    flat.mkdir()
    from safetensors.torch import save_file as save_torch

    save_torch({n: v.contiguous().clone() for n, v in weights.items()}, flat / "model.safetensors")
    assert hash_weights(bins)["tensors"] == hash_weights(flat)["tensors"]
    assert hash_weights(bins)["digest"] == hash_weights(flat)["digest"]


class _Bomb:
    def __reduce__(self) -> tuple:
        return (__import__("os").system, ("touch detdiag-was-here",))


def test_a_hostile_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.zeros(2), "x": _Bomb()}, tmp_path / "pytorch_model.bin")
    assert list(hash_weights(tmp_path)["tensors"]) == ["w"]
    assert not (tmp_path / "detdiag-was-here").exists()


def test_an_old_torch_file_is_hashed_as_a_whole(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    found = hash_weights(tmp_path)
    assert found["tensors"] == {}
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert found["files"]["pytorch_model.bin"]["digest"] == f"xxh3:{digest}"


def test_gguf_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_chat_template("{{ messages[0].content }}")
    writer.add_token_list([f"t{i}" for i in range(100)])
    writer.add_uint32("llama.block_count", 2)
    arrays = {"a.weight": np.arange(64, dtype=np.float32).reshape(2, 32),
              "b.weight": np.arange(10, dtype=np.float16)}  # fmt: skip
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    quantised = gguf.quants.quantize(arrays["a.weight"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = hash_weights(path)
    reader = gguf.GGUFReader(str(path))
    for tensor in reader.tensors:
        dtype, _, digest = found["tensors"][tensor.name]
        assert dtype == tensor.tensor_type.name
        assert digest == xxhash.xxh3_128_hexdigest(tensor.data.tobytes())
    assert found["tensors"]["a.weight"][1] == [2, 32] and found["tensors"]["q.weight"][1] == [2, 32]
    assert found["metadata"]["llama.block_count"] == 2
    assert found["metadata"]["tokenizer.ggml.tokens"]["items"] == 100
    for size in (3, 20, 60, path.stat().st_size - 40):
        (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:size])
        with pytest.raises(DetdiagError, match="cut.gguf"):
            hash_weights(tmp_path / "cut.gguf")


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for number, (name, block, size) in BLOCKS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name and gguf.GGML_QUANT_SIZES[kind] == (block, size)


def corrupt(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    if how == "cut":
        path.write_bytes(raw[:-10])
        return
    if how == "cut header":
        path.write_bytes(raw[: length // 2])
        return
    if how == "empty":
        path.write_bytes(b"")
        return
    if how == "tail":
        path.write_bytes(raw + b"x")
        return
    if how == "garbage header":
        path.write_bytes(raw[:8] + b"\xff" * length + raw[8 + length :])
        return
    if how == "shape":
        header["model.norm.weight"]["shape"] = [7]
    elif how == "overlap":
        header["model.norm.weight"]["data_offsets"] = [0, 12]
    elif how == "entry":
        header["model.norm.weight"] = 3
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    ("how", "names_tensor"),
    [("cut", True), ("cut header", False), ("empty", False), ("tail", False),
     ("garbage header", False), ("shape", True), ("overlap", True), ("entry", True)],
)  # fmt: skip
def test_broken_safetensors_name_the_file_and_the_tensor(
    tmp_path: Path, how: str, names_tensor: bool
) -> None:
    write_model(tmp_path)
    corrupt(tmp_path, how)
    with pytest.raises(DetdiagError) as caught:
        hash_weights(tmp_path)
    text = str(caught.value)
    assert "model.safetensors" in text and "\n" not in text
    assert ("tensor '" in text) is names_tensor


def test_a_missing_shard_and_a_broken_index(tmp_path: Path) -> None:
    write_shards(tmp_path, tensors(), 2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DetdiagError, match="model-00002-of-00002.safetensors is missing"):
        hash_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(DetdiagError, match="corrupt weight index"):
        hash_weights(tmp_path)


def test_an_adapter_counts(tmp_path: Path) -> None:
    write_model(tmp_path)
    before = hash_weights(tmp_path)["digest"]
    save_file({"lora.weight": np.ones(3, np.float32)}, tmp_path / "adapter_model.safetensors")
    after = hash_weights(tmp_path)
    assert after["digest"] != before and "adapter:lora.weight" in after["tensors"]


def test_empty_tensors_and_an_empty_file(tmp_path: Path) -> None:
    save_file({"none": np.empty((0, 4), np.float32)}, tmp_path / "model.safetensors")
    (header,), _ = read_headers(tmp_path)
    assert header.tensors[0].size == 0
    assert hash_weights(tmp_path)["bytes"] == 0
