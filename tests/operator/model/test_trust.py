"""Changes between own authorities and an issuer, over any time: whoever connects trusts whoever it connects to."""

import base64
import os
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.authorities import DAY_S, Terms, UnreadableAuthorities
from slipway_operator.model.issuing import trust
from slipway_operator.model.issuing.trust import MAX_CAS, Offer
from tests.support.cert_manager import new_ca, pem

TERMS = Terms(leaf_s=90 * DAY_S, rotation_s=365 * DAY_S, propagation_s=DAY_S)
START = 1_800_000_000.0
CAS = [pem(new_ca(f"ca {number}", datetime.fromtimestamp(START, UTC)).certificate) for number in range(MAX_CAS + 1)]


def fresh(now):
    return authorities.new_authority(os.urandom(authorities.SEED_BYTES + 4), now)


def ids(anchors):
    return [one.id for one in anchors]


def offer(*numbers, complete=True):
    return Offer(tuple(CAS[number] for number in numbers), complete)


def step(anchors, given, now):
    return trust.advance(anchors, given, now, TERMS, fresh(now))


# A day with an issuer or without one, which of its CAs signs what it gives now, and whether all have a certificate.
DAYS = st.lists(
    st.tuples(st.sampled_from([None, 0, 1]), st.booleans(), st.floats(0.01, 20.0)), min_size=15, max_size=60
)


@settings(max_examples=80, deadline=None)
@given(days=DAYS)
def test_processes_with_older_and_newer_secrets_trust_each_other_whatever_signs(days):
    """A process has what was written until a day ago, or later. Which of two CAs the issuer has may change each day."""
    now, anchors, written, held = START, (), [], None
    for issuer, complete, pause in days:
        given = None if issuer is None else offer(issuer, complete=complete)
        anchors = step(anchors, given, now)
        if not anchors:
            now += pause * DAY_S
            continue
        # As the operator hands certificates out: own ones, the issuer's newest when it is trusted, else the former one.
        if not trust.issuer_signs(anchors):
            held = (anchors[0].id, now)
        elif issuer is not None and trust.is_trusted(anchors, given.cas, now, TERMS):
            held = (trust.id_of(CAS[issuer]), now)
        written.append((now, set(ids(anchors)), held))
        successors = [at for at, _, _ in written[1:]] + [now + 1]
        views = [view for view, next_at in zip(written, successors, strict=True) if next_at > now - TERMS.propagation_s]
        for _, _, shown in views:
            if shown and now - shown[1] < TERMS.leaf_s:
                assert all(shown[0] in trusted for _, trusted, _ in views)
        assert trust.parse(trust.render(anchors)) == anchors
        now += pause * DAY_S


def test_an_issuers_ca_is_trusted_for_a_day_before_it_signs_and_own_ones_until_their_certificates_are_over():
    anchors = step((), None, START)
    own = ids(anchors)
    anchors = step(anchors, offer(0), START)
    assert ids(anchors) == [*own, trust.id_of(CAS[0])] and not trust.issuer_signs(anchors)
    assert step(anchors, offer(0), START + DAY_S - 1) == anchors
    assert not trust.issuer_signs(step(anchors, offer(0, complete=False), START + DAY_S))
    anchors = step(anchors, offer(0), START + DAY_S)
    assert ids(anchors) == [trust.id_of(CAS[0]), *own]
    for day in range(2, 93):
        anchors = step(anchors, offer(0), START + day * DAY_S)
        assert ids(anchors)[1:] == own
    assert ids(step(anchors, offer(0), START + 94 * DAY_S)) == [trust.id_of(CAS[0])]


def test_back_to_own_authorities_a_new_one_is_trusted_for_a_day_before_it_signs():
    anchors = step((), offer(0), START)
    assert ids(anchors) == [trust.id_of(CAS[0])]
    assert trust.is_trusted(anchors, offer(0).cas, START, TERMS), "nothing was trusted before: nothing has to wait"
    anchors = step(anchors, None, START + DAY_S)
    assert trust.issuer_signs(anchors) and len(anchors) == 2
    assert step(anchors, None, START + 2 * DAY_S - 1) == anchors
    anchors = step(anchors, None, START + 2 * DAY_S)
    assert not trust.issuer_signs(anchors) and len(anchors) == 2
    assert len(step(anchors, None, START + 95 * DAY_S)) == 1


def test_back_within_three_months_the_former_authority_signs_at_once():
    own = step((), None, START)
    anchors = step(step(own, offer(0), START), offer(0), START + DAY_S)
    assert trust.issuer_signs(anchors)
    back = step(anchors, None, START + 40 * DAY_S)
    assert ids(back)[0] == own[0].id and not trust.issuer_signs(back)


def test_another_ca_of_the_issuer_waits_for_a_day_and_the_former_one_stays_while_it_is_used():
    anchors = step((), offer(0), START)
    anchors = step(anchors, offer(0, 1), START + 10 * DAY_S)
    assert not trust.is_trusted(anchors, offer(1).cas, START + 11 * DAY_S - 1, TERMS)
    assert trust.is_trusted(anchors, offer(1).cas, START + 11 * DAY_S, TERMS)
    for day in range(11, 101):
        anchors = step(anchors, offer(1), START + day * DAY_S)
        assert len(anchors) == 2
    assert ids(step(anchors, offer(1), START + 103 * DAY_S)) == [trust.id_of(CAS[1])]


def test_an_issuer_with_a_ca_for_each_certificate_does_not_fill_the_secret():
    anchors = step((), offer(*range(MAX_CAS + 1)), START)
    assert len(anchors) == MAX_CAS
    assert not trust.is_trusted(anchors, offer(MAX_CAS).cas, START, TERMS)


@pytest.mark.parametrize("text", ["{}", '{"signs": true, "cas": [{"id": "a"}]}', "no JSON"])
def test_what_no_operator_wrote_is_named(text):
    with pytest.raises(UnreadableAuthorities, match=r"issuer\.json is not what the operator writes"):
        trust.parse({trust.DATA: base64.b64encode(text.encode()).decode()})


def test_a_ca_by_the_id_of_another_is_named():
    data = trust.render(step((), offer(0), START))
    changed = base64.b64decode(data[trust.DATA]).replace(trust.id_of(CAS[0]).encode(), b"0" * 16)
    with pytest.raises(UnreadableAuthorities, match="the id of another"):
        trust.parse({**data, trust.DATA: base64.b64encode(changed).decode()})
