"""Which calls of the tokenizers' library keep the GIL: the threads that tokenize rely on it."""

import threading
import time
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer as Backend

from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS

pytestmark = [pytest.mark.finding("F1"), pytest.mark.attack_class(18)]

TEXT = "And God called the light day, and the darkness night. " * 20_000


def share_of_pauses(work: Callable[[], object]) -> float:
    """The longest pause of another thread while `work` runs, as a share of the time that it takes."""
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        last_s = time.perf_counter()
        while not over.is_set():
            time.sleep(0.001)
            now_s = time.perf_counter()
            gaps.append(now_s - last_s)
            last_s = now_s

    ticker = threading.Thread(target=tick)
    ticker.start()
    began_s = time.perf_counter()
    work()
    took_s = time.perf_counter() - began_s
    over.set()
    ticker.join()
    return max(gaps) / took_s


def test_encoding_and_decoding_let_other_threads_run() -> None:
    tokenizer = Tokenizer(MODELS / "tiny-v1")
    tokens = list(tokenizer.encode_now(TEXT)) * 8
    assert min(share_of_pauses(lambda: tokenizer.encode_now(TEXT)) for _ in range(3)) < 0.3
    assert min(share_of_pauses(lambda: tokenizer.decode(tokens)) for _ in range(3)) < 0.5


def test_the_calls_for_one_text_do_not() -> None:
    """Where the library changes this, `encode_now` and `decode` may become simpler."""
    backend = Backend.from_file(str(MODELS / "tiny-v1" / "tokenizer.json"))
    tokens = backend.encode(TEXT).ids * 8
    assert max(share_of_pauses(lambda: backend.encode(TEXT)) for _ in range(3)) > 0.8
    assert max(share_of_pauses(lambda: backend.decode(tokens)) for _ in range(3)) > 0.8


def test_the_ids_are_those_of_the_call_for_one_text() -> None:
    backend = Backend.from_file(str(MODELS / "tiny-v1" / "tokenizer.json"))
    for text in ("", "a", TEXT[:1000], "<|im_start|>user\nÜñí 漢字 🚢\u0301<|im_end|>", " " * 50):
        for special in (True, False):
            fast = backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
            assert fast == backend.encode(text, add_special_tokens=special).ids
            for skip in (True, False):
                assert backend.decode_batch([fast], skip_special_tokens=skip) == [backend.decode(fast, skip)]
