"""Cut a Piper voice (one VITS graph) into its acoustic half and its decoder half, and keep the halves on disk.

Theory of operation
    A Piper graph turns phoneme ids into a wave. Its last part, a HiFi-GAN decoder, is a chain of convolutions over
    latent frames `z`: cut there, speech can be made in small chunks while the frames are already all known.
    The places to cut are found by what the nodes do, never by their names:

        z          data input of the convolution before the first ConvTranspose
        durations  output of the Ceil that a CumSum adds up
        noise      the two RandomNormalLike nodes; they become graph inputs, so that a seed fixes the speech

    A noise input is a flat float32 vector of any length from 1 on, read again from its start where the graph needs
    more; a single 0 is silence in the noise. The channels of a frame and the samples of a frame (hop) are read from
    the decoder's weights and strides.

Rules
* The cache is keyed by the identity of the halves: voice file and `FORMAT`. The manifest is written last and holds
  the SHA-256 of both; whatever does not match is split again, so a torn or altered cache costs time and never sound.
* Files appear by rename only. Two processes may split the same voice at once: each writes the same contents.
* A graph without these places is refused with `UnsupportedVoiceError`, which names what was not found.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stages.identity import Weights, digest_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

# Part of the identity of the halves: raised whenever those that this module writes change.
FORMAT = 1

# What every Piper exporter calls the graph's inputs (rhasspy/piper, export_onnx). A voice of several speakers has one
# more, `sid`, and a decoder that depends on it.
GRAPH_INPUTS = ("input", "input_lengths", "scales")

# Names that the halves have, whatever the voice's own were.
LATENTS = "latents"
DURATIONS = "durations"
DURATION_NOISE = "duration_noise"
LATENT_NOISE = "latent_noise"
WAVE = "wave"


class UnsupportedVoiceError(ValueError):
    """The voice cannot be used here; the text says what was not found. The configuration must name another."""


@dataclass(frozen=True, slots=True)
class SplitVoice:
    """Both halves of a voice. `digest` is the SHA-256 of the whole voice file, `hop` the samples of a frame.

    acoustic: input int64[1, ids], input_lengths int64[1], scales float32[3] (noise, length, duration noise),
    duration_noise float32[any], latent_noise float32[any] -> latents float32[1, channels, frames],
    durations float32[1, 1, ids] in frames. decoder: latents -> wave float32[1, 1, frames * hop].
    """

    acoustic: Path
    decoder: Path
    channels: int
    hop: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """What the cache says about its two files."""

    acoustic_sha256: str
    decoder_sha256: str
    channels: int
    hop: int


def split_voice(voice: Path, cache_dir: Path) -> SplitVoice:
    """The halves of `voice`, from `cache_dir` if they lie there unharmed, else split now (about 2 s).

    Raises `UnsupportedVoiceError`, and `OSError` when a file cannot be read or written.
    """
    digest = file_digest(voice)
    stem = cache_dir / digest_of(Weights(digest, f"piper_split/{FORMAT}"))
    cached = _cached(stem, digest)
    if cached is not None:
        return cached
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=cache_dir) as workspace:
        manifest = _split(voice, Path(workspace))
        for part in ("acoustic", "decoder", "manifest"):
            (Path(workspace) / part).replace(_part(stem, part))
    return _located(stem, digest, manifest)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(stem: Path, part: str) -> Path:
    suffix = "json" if part == "manifest" else "onnx"
    return stem.with_name(f"{stem.name}-{part}.{suffix}")


def _located(stem: Path, digest: str, manifest: Manifest) -> SplitVoice:
    return SplitVoice(_part(stem, "acoustic"), _part(stem, "decoder"), manifest.channels, manifest.hop, digest)


def _cached(stem: Path, digest: str) -> SplitVoice | None:
    try:
        manifest = msgspec.json.decode(_part(stem, "manifest").read_bytes(), type=Manifest)
        found = (file_digest(_part(stem, "acoustic")), file_digest(_part(stem, "decoder")))
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if found != (manifest.acoustic_sha256, manifest.decoder_sha256):
        return None
    return _located(stem, digest, manifest)


# ---- the cut ----------------------------------------------------------------------------------------------


def _split(voice: Path, workspace: Path) -> Manifest:
    # Only splitting needs the onnx package: a worker that finds its cache never pays for the import.
    import onnx

    model = _load(voice)
    channels, hop = _mark_cuts(model)
    whole, acoustic, decoder = (workspace / name for name in ("whole", "acoustic", "decoder"))
    onnx.save(model, str(whole))
    acoustic_inputs = [*GRAPH_INPUTS, DURATION_NOISE, LATENT_NOISE]
    onnx.utils.extract_model(str(whole), str(acoustic), acoustic_inputs, [LATENTS, DURATIONS])
    onnx.utils.extract_model(str(whole), str(decoder), [LATENTS], [WAVE], check_model=False)
    manifest = Manifest(file_digest(acoustic), file_digest(decoder), channels, hop)
    (workspace / "manifest").write_bytes(msgspec.json.encode(manifest))
    return manifest


def _load(voice: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return onnx.load(str(voice))
    except DecodeError as error:
        raise UnsupportedVoiceError(f"{voice.name} is not an ONNX graph") from error


def _mark_cuts(model: ModelProto) -> tuple[int, int]:
    """Give the tensors to cut at their names and make the noise an input; returns (channels, hop)."""
    graph = model.graph
    _check_inputs(graph)
    first = _first_convolution(graph)
    latents, durations = first.input[0], _durations(graph)
    _check_decoder(graph, latents)
    noises = _noises(graph, durations)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    if first.input[1] not in weights:
        raise UnsupportedVoiceError("no weights at the decoder's first convolution")
    for name, node in noises.items():
        _feed_noise(graph, node, name)
    _rename(graph, {latents: LATENTS, durations: DURATIONS, graph.output[0].name: WAVE})
    return weights[first.input[1]].dims[1], _hop(graph)


def _check_inputs(graph: GraphProto) -> None:
    inputs = [value.name for value in graph.input]
    missing = [name for name in GRAPH_INPUTS if name not in inputs]
    extra = [name for name in inputs if name not in GRAPH_INPUTS]
    if missing:
        raise UnsupportedVoiceError(f"no graph input {missing[0]!r}: not a Piper voice")
    if extra:
        raise UnsupportedVoiceError(f"graph input {extra[0]!r} is unknown: voices of several speakers cannot be used")


def _producers(graph: GraphProto) -> dict[str, NodeProto]:
    return {output: node for node in graph.node for output in node.output}


def _first_convolution(graph: GraphProto) -> NodeProto:
    """The convolution whose output the decoder starts to upsample; only unary nodes may lie between."""
    producers = _producers(graph)
    upsampler = next((node for node in graph.node if node.op_type == "ConvTranspose"), None)
    if upsampler is None:
        raise UnsupportedVoiceError("no ConvTranspose node: no decoder that upsamples latent frames")
    node = producers.get(upsampler.input[0])
    while node is not None and len(node.input) == 1:
        node = producers.get(node.input[0])
    if node is None or node.op_type != "Conv":
        raise UnsupportedVoiceError("no Conv node before the first ConvTranspose: no place to cut the decoder")
    return node


def _durations(graph: GraphProto) -> str:
    summed = {node.input[0] for node in graph.node if node.op_type == "CumSum"}
    ceilings = [str(node.output[0]) for node in graph.node if node.op_type == "Ceil"]
    found = [name for name in ceilings if name in summed]
    if len(found) != 1:
        raise UnsupportedVoiceError(f"{len(found)} Ceil nodes before a CumSum, not 1: no phoneme durations")
    return found[0]


def _ancestors(graph: GraphProto, tensor: str, stop: str = "") -> set[str]:
    """All tensors that `tensor` is computed from, itself included, looking no further than `stop`."""
    producers = _producers(graph)
    seen: set[str] = set()
    pending = [tensor]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name != stop and name in producers:
            pending.extend(producers[name].input)
    return seen


def _check_decoder(graph: GraphProto, latents: str) -> None:
    """The wave must be computed from the latents and from constants alone."""
    needed = _ancestors(graph, graph.output[0].name, stop=latents)
    outside = sorted(needed & {value.name for value in graph.input})
    if latents not in needed or outside:
        raise UnsupportedVoiceError(f"no decoder that depends on the latent frames alone (inputs: {outside})")


def _noises(graph: GraphProto, durations: str) -> dict[str, NodeProto]:
    """The two sources of noise by the name of the input that each becomes."""
    before_durations = _ancestors(graph, durations)
    nodes = [node for node in graph.node if node.op_type == "RandomNormalLike"]
    noises = {DURATION_NOISE if node.output[0] in before_durations else LATENT_NOISE: node for node in nodes}
    if len(nodes) != 2 or len(noises) != 2:
        raise UnsupportedVoiceError(f"{len(nodes)} RandomNormalLike nodes, not one each for durations and latents")
    return noises


def _hop(graph: GraphProto) -> int:
    upsamplers = [node for node in graph.node if node.op_type == "ConvTranspose"]
    return prod(attribute.ints[0] for node in upsamplers for attribute in node.attribute if attribute.name == "strides")


def _feed_noise(graph: GraphProto, node: NodeProto, name: str) -> None:
    """Replace RandomNormalLike(x) by as many values of the input `name`, taken round and round, in the shape of x."""
    from onnx import TensorProto, helper

    def tensor(part: str) -> str:
        return f"{name}/{part}"

    zero, one = (
        helper.make_node("Constant", [], [tensor(part)], value=helper.make_tensor(part, TensorProto.INT64, [], [value]))
        for part, value in (("zero", 0), ("one", 1))
    )
    nodes = [
        zero,
        one,
        helper.make_node("Shape", [node.input[0]], [tensor("shape")]),
        helper.make_node("ReduceProd", [tensor("shape")], [tensor("count")], keepdims=0),
        helper.make_node("Range", [tensor("zero"), tensor("count"), tensor("one")], [tensor("places")]),
        helper.make_node("Size", [name], [tensor("size")]),
        helper.make_node("Mod", [tensor("places"), tensor("size")], [tensor("wrapped")]),
        helper.make_node("Gather", [name, tensor("wrapped")], [tensor("flat")]),
        helper.make_node("Reshape", [tensor("flat"), tensor("shape")], [node.output[0]]),
    ]
    place = next(index for index, other in enumerate(graph.node) if other.output[0] == node.output[0])
    del graph.node[place]
    for offset, new in enumerate(nodes):
        graph.node.insert(place + offset, new)
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_length"]))


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
        for index, name in enumerate(node.output):
            node.output[index] = names.get(name, name)
    for value in (*graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
