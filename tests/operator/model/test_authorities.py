"""Rotation of certificate authorities over any time: whoever connects trusts whoever it connects to."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.model.cluster import authorities as model
from slipway_operator.model.cluster.authorities import DAY_S, Terms, UnreadableAuthorities

TERMS = Terms(leaf_s=90 * DAY_S, rotation_s=365 * DAY_S, propagation_s=DAY_S)
START = 1_800_000_000.0


def fresh(now):
    return model.new_authority(os.urandom(model.SEED_BYTES + 4), now)


@settings(max_examples=60, deadline=None)
@given(pauses=st.lists(st.floats(0.01, 25.0), min_size=20, max_size=90))
def test_a_process_with_an_old_secret_and_one_with_a_new_one_trust_each_other(pauses):
    """The operator is away between two steps. A process has what was written until a day ago, or something later."""
    now, known, written = START, (), []
    for pause in pauses:
        known = model.advance(known, now, TERMS, fresh(now))
        written.append((now, known, model.period("pods of a", now, TERMS)))
        successors = [at for at, _, _ in written[1:]] + [now + 1]
        views = [view for view, next_at in zip(written, successors, strict=True) if next_at > now - TERMS.propagation_s]
        for _, authorities, period in views:
            signer = authorities[0]
            assert period.start - model.BACKDATED_S <= now < period.end
            assert now < signer.created + TERMS.authority_s
            assert all(signer.id in {one.id for one in trusted} for _, trusted, _ in views)
        now += pause * DAY_S


@settings(max_examples=60, deadline=None)
@given(now=st.floats(START, START + 1000 * DAY_S), name=st.text(min_size=1, max_size=20))
def test_a_certificate_is_renewed_with_a_third_of_its_time_left(now, name):
    period = model.period(name, now, TERMS)
    assert period.start <= now + 1e-3
    assert period.end - now >= TERMS.leaf_s / 3 - 1e-3
    assert model.period(name, period.start + TERMS.renewal_s * 0.999, TERMS).start == pytest.approx(period.start)


def test_names_do_not_renew_in_one_minute():
    starts = {round(model.period(f"namespace-{number}", START, TERMS).start / 3600) for number in range(200)}
    assert len(starts) > 150


def test_a_new_authority_is_trusted_before_it_signs_and_the_former_one_while_its_certificates_last():
    first = model.advance((), START, TERMS, fresh(START))
    old = first[0].id
    now = START + 365 * DAY_S
    joined = model.advance(first, now, TERMS, fresh(now))
    assert joined[0].id == old
    assert len(joined) == 2
    assert model.advance(joined, now + DAY_S - 1, TERMS, fresh(now)) == joined
    now += DAY_S
    moved = model.advance(joined, now, TERMS, fresh(now))
    assert [one.id for one in moved] == [joined[1].id, old]
    assert model.advance(moved, now + 90 * DAY_S, TERMS, fresh(now)) == moved
    assert model.advance(moved, now + 91 * DAY_S, TERMS, fresh(now)) == moved[:1]


def test_a_clock_that_was_ahead_makes_a_new_authority_and_one_that_is_over_is_dropped():
    ahead = fresh(START + 900 * DAY_S)
    new = fresh(START)
    assert model.advance((ahead,), START, TERMS, new) == (new,)
    assert model.advance((fresh(START),), START + TERMS.authority_s, TERMS, new) == (new,)


def test_authorities_are_read_as_they_were_written():
    known = (fresh(START), fresh(START + 1))
    assert model.parse({model.DATA: model.render(known)}) == known
    assert model.parse({}) == ()


@pytest.mark.parametrize("text", ["eyJ4", "e30=", "!"])
def test_what_the_operator_did_not_write_is_refused_without_its_content(text):
    with pytest.raises(UnreadableAuthorities, match="not what the operator writes"):
        model.parse({model.DATA: text})


def test_a_short_seed_is_refused():
    short = (model.Authority("0" * 8, "QUJD", START, START),)
    with pytest.raises(UnreadableAuthorities, match="another length"):
        model.parse({model.DATA: model.render(short)})
