"""The sums and the speed of a fetch."""

from slipway_fetcher.downloads import RATE_OVER_S, DownloadMeter, DownloadProgress, DownloadState


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_speed_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    meter = DownloadMeter(clock)
    meter.expect(10_000)
    for _ in range(20):  # 100 bytes in each second
        clock.now += 1
        meter.add(100, 100)
    assert meter.state() == DownloadState(2000, 10_000, 100)
    for _ in range(20):
        clock.now += 1
        meter.add(300, 300)
    assert meter.state() == DownloadState(8000, 10_000, 300), "what was before ten seconds has no part in it"
    clock.now += RATE_OVER_S / 2
    assert 0 < meter.state().bytes_per_second < 300
    clock.now += RATE_OVER_S
    assert meter.state().bytes_per_second == 0


def test_what_is_there_already_counts_and_is_no_speed() -> None:
    clock = Clock()
    meter = DownloadMeter(clock)
    progress = DownloadProgress("fetched", 1000, 200, meter)
    clock.now += 1
    progress.correct(300)
    assert meter.state() == DownloadState(500, 1000, 0)
    progress.add(100)
    assert meter.state() == DownloadState(600, 1000, 100)
    progress.correct(-400)
    assert meter.state() == DownloadState(200, 1000, 100)


def test_a_size_is_learned_once() -> None:
    meter = DownloadMeter()
    progress = DownloadProgress("fetched", None, meter=meter)
    progress.add(10)
    assert (meter.state().done_bytes, meter.state().size_bytes) == (10, None)
    for size in (None, 100, 200):
        progress.learn(size)
    assert (meter.state().done_bytes, meter.state().size_bytes) == (10, 100)


def test_several_downloads_are_one_fetch_until_it_begins_again() -> None:
    meter = DownloadMeter()
    for size in (100, 50):
        DownloadProgress("fetched", size, meter=meter).add(size)
    assert (meter.state().done_bytes, meter.state().size_bytes) == (150, 150)
    meter.begin()
    assert meter.state() == DownloadState()


def test_done_is_never_more_than_all_nor_less_than_nothing() -> None:
    meter = DownloadMeter()
    progress = DownloadProgress("fetched", 100, meter=meter)
    progress.add(300)
    assert meter.state().done_bytes == 100
    progress.correct(-1000)
    assert meter.state().done_bytes == 0


def test_a_download_ends_the_wait() -> None:
    meter = DownloadMeter()
    meter.wait()
    assert meter.state() == DownloadState(waiting=True)
    meter.expect(5)
    assert meter.state() == DownloadState(0, 5)
