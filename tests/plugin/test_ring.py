"""The ring setting: arithmetic, the start-up check, and vLLM's own rings and queues under it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import vllm.envs
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, ShmRingBuffer

from assay.errors import SettingsError
from assay.plugin import general, ring
from assay.plugin.constants import MAX_RING_CHUNKS, RING_CHUNKS_SETTING
from assay.plugin.ring import MIB, check_space, needed_bytes, parse_chunks, sized_ring


@pytest.mark.parametrize("value", [None, "", " "])
def test_unset_keeps_stocks_sizes(value: str | None) -> None:
    assert parse_chunks(value) is None


@pytest.mark.parametrize(("value", "chunks"), [("2", 2), ("64", 64), ("4096", 4096)])
def test_a_whole_number_is_read(value: str, chunks: int) -> None:
    assert parse_chunks(value) == chunks


@pytest.mark.parametrize(
    "value", ["0", "1", "4097", "-64", "+64", "6_4", "64.0", "sixty", "٦٤", " 64", "1e2", "0x40"]
)
def test_anything_else_is_refused_with_its_name_and_range(value: str) -> None:
    with pytest.raises(SettingsError, match=RING_CHUNKS_SETTING) as caught:
        parse_chunks(value)
    assert f"2 to {MAX_RING_CHUNKS}" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("world", "chunks", "mib"),
    [
        (1, None, 10 * (16 + 24)),
        (4, None, 10 * (16 + 4 * 24) + 6 * 4),
        (8, None, 10 * (16 + 8 * 24) + 6 * 4),
        (4, 64, 64 * (16 + 4 * 24 + 4)),
        (1, 64, 64 * (16 + 24)),
    ],
)
def test_the_arithmetic_of_all_rings(world: int, chunks: int | None, mib: int) -> None:
    assert needed_bytes(world, chunks) == mib * MIB


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_the_check_says_what_is_needed_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB is Docker's default /dev/shm."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 * MIB, 0, 64 * MIB))
    with pytest.raises(SettingsError) as caught:
        check_space(4, 64, shm=tmp_path)
    text = str(caught.value)
    assert "64 MiB free" in text
    assert "4 worker(s) with 64 chunks" in text
    assert "7424 MiB" in text
    assert "--shm-size=8g" in text
    assert RING_CHUNKS_SETTING in text


@pytest.mark.parametrize("spare", [-1, 0])
def test_the_check_is_exact(spare: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = needed_bytes(2, 10) + spare
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free, 0, free))
    with contextlib.nullcontext() if spare == 0 else pytest.raises(SettingsError):
        check_space(2, 10, shm=tmp_path)


def test_a_machine_without_shm_is_not_checked(tmp_path: Path) -> None:
    check_space(1000, 4096, shm=tmp_path / "absent")


# -- vLLM's call sites


def constant_arguments(module: ModuleType, method: str) -> list[list[int]]:
    """Constant arguments after the first of every call of ``method`` in a stock module."""
    calls = (
        node.args[1:]
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    )
    return [[_number(arg) for arg in args] for args in calls if args and all(map(_constant, args))]


def _constant(node: ast.expr) -> bool:
    return all(isinstance(n, ast.Constant | ast.BinOp | ast.LShift) for n in ast.walk(node))


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _number(node.left) << _number(node.right)
    return int(ast.literal_eval(node))


def test_the_documented_sizes_are_those_of_this_vllm() -> None:
    """Broadcast, response and group rings: the numbers ``ring.py`` computes with."""
    defaults = inspect.signature(MessageQueue.__init__).parameters
    assert defaults["max_chunk_bytes"].default == ring.RESPONSE_CHUNK
    assert defaults["max_chunks"].default == ring.STOCK_CHUNKS
    assert vllm.envs.environment_variables["VLLM_MQ_MAX_CHUNK_BYTES_MB"]() * MIB == (
        ring.BROADCAST_CHUNK
    )
    groups = constant_arguments(parallel_state, "create_from_process_group")
    assert {tuple(numbers) for numbers in groups} == {(ring.GROUP_CHUNK, ring.STOCK_GROUP_CHUNKS)}


# -- real rings


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stock class with our constructor at 64 chunks, as ``general.py`` installs it."""
    monkeypatch.setattr(ShmRingBuffer, "__init__", sized_ring(ShmRingBuffer, 64))
    yield


@pytest.mark.usefixtures("sized")
@pytest.mark.parametrize("stock_chunks", [1, 6, 10, 20])
def test_a_created_ring_has_the_settings_chunks_at_every_call_site(stock_chunks: int) -> None:
    buffer = ShmRingBuffer(2, 4096, stock_chunks)
    assert buffer.max_chunks == 64
    assert buffer.shared_memory.size >= 64 * (4096 + 3)
    assert buffer.handle()[2] == 64


@pytest.mark.usefixtures("sized")
def test_a_ring_opened_by_its_handle_keeps_its_creators_chunks() -> None:
    """A reader on a node with another setting must compute the creator's offsets."""
    creator = ShmRingBuffer.__new__(ShmRingBuffer)
    ShmRingBuffer.__init__.assay_stock(creator, 1, 4096, 5)  # type: ignore[attr-defined]
    reader = ShmRingBuffer(*creator.handle())
    assert (reader.max_chunks, reader.metadata_offset) == (5, creator.metadata_offset)
    assert not reader.is_creator


@pytest.mark.usefixtures("sized")
def test_a_real_queue_carries_64_messages_before_it_is_full() -> None:
    """Writer and reader of one queue over /dev/shm: 64 fit, the next waits, all arrive in order."""
    writer = MessageQueue(1, 1, max_chunk_bytes=MIB, max_chunks=10)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    writer.wait_until_ready()
    reader.wait_until_ready()
    assert reader.buffer.max_chunks == 64
    for number in range(64):
        writer.enqueue({"step": number}, timeout=5)
    with pytest.raises(TimeoutError):
        writer.enqueue({"step": 64}, timeout=0.2)
    assert [reader.dequeue(timeout=5)["step"] for _ in range(64)] == list(range(64))
    writer.enqueue({"step": 64}, timeout=5)
    assert reader.dequeue(timeout=5) == {"step": 64}


def test_without_the_setting_the_queue_is_stocks() -> None:
    writer = MessageQueue(1, 1, max_chunk_bytes=4096)
    assert writer.buffer.max_chunks == ring.STOCK_CHUNKS


def test_the_sum_of_all_rings_is_checked_when_the_broadcast_ring_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by its chunk size, whatever VLLM_MQ_MAX_CHUNK_BYTES_MB says; the others are not checked."""
    monkeypatch.setattr(
        ShmRingBuffer, "__init__", sized_ring(ShmRingBuffer, 4, broadcast_chunk=8192, shm=tmp_path)
    )
    free = needed_bytes(3, 4, 8192) - 1
    monkeypatch.setattr(ring.shutil, "disk_usage", lambda path: Usage(free, 0, free))
    with pytest.raises(SettingsError, match="3 worker"):
        ShmRingBuffer(3, 8192, 10)
    assert ShmRingBuffer(1, 4096, 10).max_chunks == 4


# -- installation


@pytest.fixture
def restored() -> Iterator[None]:
    before = ShmRingBuffer.__init__
    yield
    ShmRingBuffer.__init__ = before  # type: ignore[method-assign]


STOCK = {"vllm.distributed.device_communicators.shm_broadcast.ShmRingBuffer": ShmRingBuffer}


@pytest.mark.usefixtures("restored")
def test_install_reads_the_setting_and_does_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RING_CHUNKS_SETTING, "12")
    general._install_ring(STOCK)
    first = shm_broadcast.ShmRingBuffer.__init__
    general._install_ring(STOCK)
    assert shm_broadcast.ShmRingBuffer.__init__ is first
    assert ShmRingBuffer(1, 4096, 10).max_chunks == 12


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("megabytes", ["4", "24", "32"])
def test_install_knows_the_broadcast_ring_by_vllms_own_setting(
    megabytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 and 4 MiB are the sizes of the other rings; the check must not be lost there."""
    monkeypatch.setenv(RING_CHUNKS_SETTING, "12")
    monkeypatch.setenv("VLLM_MQ_MAX_CHUNK_BYTES_MB", megabytes)
    general._install_ring(STOCK)
    monkeypatch.setattr(ring.shutil, "disk_usage", lambda path: Usage(MIB, 0, MIB))
    with pytest.raises(SettingsError, match="2 worker"):
        ShmRingBuffer(2, int(megabytes) * MIB, 10)


@pytest.mark.usefixtures("restored")
def test_unset_leaves_the_stock_class_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RING_CHUNKS_SETTING, raising=False)
    before = ShmRingBuffer.__init__
    general._install_ring(STOCK)
    assert ShmRingBuffer.__init__ is before


def test_a_bad_setting_refuses_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RING_CHUNKS_SETTING, "many")
    with pytest.raises(SettingsError, match="many"):
        general._install_ring(STOCK)
