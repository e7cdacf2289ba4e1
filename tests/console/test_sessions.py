"""Sessions end in time, and no user takes the places of others."""

import pytest

from slipway_console.access.api_server import Viewer
from slipway_console.serving.sessions import MOST_OF_A_USER, SessionStore
from slipway_console.settings import ConsoleSettings
from tests.support.settings import parsed


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def store(most: int = 16, lasts_s: float = 3600.0) -> tuple[SessionStore, Clock]:
    clock = Clock()
    return SessionStore(most, lasts_s, clock), clock


def test_a_session_lasts_as_long_as_it_may_and_no_longer() -> None:
    sessions, clock = store()
    session = sessions.open(Viewer("a", "t"))
    assert session and sessions.find(session.id) is session
    clock.now_s = 3599.0
    assert sessions.find(session.id) is session and sessions.left_s(session) == 1.0
    clock.now_s = 3600.0
    assert sessions.find(session.id) is None and session.ended and sessions.left_s(session) == 0.0
    assert len(sessions) == 0


def test_what_no_session_is_called_finds_none() -> None:
    sessions, _ = store()
    assert sessions.open(Viewer("a", "t"))
    assert sessions.find("") is None and sessions.find("x" * 4096) is None


def test_a_users_oldest_session_ends_for_a_new_one() -> None:
    sessions, _ = store(64)
    made = [sessions.open(Viewer("a", "t")) for _ in range(MOST_OF_A_USER + 1)]
    assert [one is not None and not one.ended for one in made] == [False] + [True] * MOST_OF_A_USER
    assert len(sessions) == MOST_OF_A_USER


def test_a_user_leaves_a_quarter_for_those_who_have_none() -> None:
    sessions, clock = store(8)
    for _ in range(20):
        assert sessions.open(Viewer("a", "t"))
    assert len(sessions) == 6
    assert sessions.open(Viewer("b", "t")) and sessions.open(Viewer("c", "t"))
    assert sessions.open(Viewer("d", "t")) is None, "every place is taken, and no session ends for a stranger"
    assert sessions.open(Viewer("a", "t")), "an own one ends"
    clock.now_s = 3600.0
    assert sessions.open(Viewer("d", "t")) and len(sessions) == 1


def test_service_accounts_of_a_namespace_leave_a_quarter_to_others() -> None:
    sessions, _ = store(16)
    made = [sessions.open(Viewer(f"system:serviceaccount:hostile:a{number}", "t")) for number in range(300)]
    assert sum(one is not None for one in made) == 12
    assert sessions.open(Viewer("system:serviceaccount:other:a0", "t")) and sessions.open(Viewer("person", "t"))
    assert made[0] and not made[0].ended, "no session of another user ends for them"


def test_ids_and_form_tokens_differ_and_are_not_shown() -> None:
    sessions, _ = store()
    made = [one for one in (sessions.open(Viewer("a", "secret")) for _ in range(4)) if one]
    values = {value for one in made for value in (one.id, one.csrf)}
    assert len(values) == 8 and all(len(value) >= 43 for value in values)
    assert "secret" not in repr(made[0]) and made[0].id not in repr(made[0])


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--session=3601", "--session: '3601' is more than 3600"),
        ("--api-server=http://api", "must begin with https://"),
        ("--poll=0", "--poll: '0' is less than 1"),
    ],
)
def test_settings_that_weaken_it_are_refused(flag: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(ConsoleSettings.parse, [flag])
    assert sentence in capsys.readouterr().err


def test_by_default_the_cookie_is_secure_and_lasts_an_hour() -> None:
    settings = parsed(ConsoleSettings.parse)
    assert settings.secure_cookie and settings.session_s == 3600.0


def test_a_session_ends_with_its_token() -> None:
    sessions, clock = store()
    long, brief = sessions.open(Viewer("a", "t")), sessions.open(Viewer("b", "t"), 3.0)
    assert long and brief and sessions.left_s(brief) == 3.0
    clock.now_s = 4.0
    assert sessions.find(brief.id) is None and sessions.find(long.id) is long
