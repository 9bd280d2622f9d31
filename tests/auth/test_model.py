"""Users and policies in the two forms that they have: stored, and in words."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.auth.model import (
    SUBJECT_USER,
    Acl,
    Action,
    Environment,
    Pattern,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    Subject,
    User,
    UserStatus,
    UserType,
    check_policies,
    is_address_or_network,
    policies_of,
)
from firearrow.errors import BrokerError
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo

# As RocketMQ 5.5.0 has written them.
STORED_USER = b'{"password":"pw","subjectType":1,"userStatus":1,"userType":1,"username":"root"}'
STORED_ACL = (
    b'{"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":'
    b'["10.0.0.0/8"]},"resource":{"resourceName":"T","resourcePattern":2,"resourceType":4}},'
    b'{"actions":[1],"decision":2,"environment":{},"resource":{"resourcePattern":1,'
    b'"resourceType":5}}],"policyType":1}],"subject":{"subjectType":1,"username":"u1"}}'
)


def test_what_rocketmq_stores_is_read_and_written_alike() -> None:
    user = msgspec.json.decode(STORED_USER, type=User)
    assert (user.username, user.password, user.is_super) == ("root", "pw", True)
    assert msgspec.json.encode(user) == STORED_USER
    acl = msgspec.json.decode(STORED_ACL, type=Acl)
    assert acl.subject.key == "User:u1"
    assert msgspec.json.encode(acl) == STORED_ACL


def test_the_same_in_words() -> None:
    assert msgspec.json.decode(STORED_USER, type=User).info() == AuthUserInfo("root", "pw", "Super", "enable")
    assert msgspec.json.decode(STORED_ACL, type=Acl).info() == AuthAcl(
        "User:u1",
        [
            AuthPolicy(
                "Custom",
                [
                    AuthEntry("Topic:T", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow"),
                    AuthEntry("Group:*", ["All"], None, "Deny"),
                ],
            )
        ],
    )


def test_a_password_is_not_shown() -> None:
    user = msgspec.json.decode(STORED_USER, type=User)
    assert "pw" not in f"{user} {user!r} {[user]}"


@pytest.mark.parametrize(
    ("text", "kind", "pattern", "name", "again"),
    [
        ("*", ResourceType.ANY, Pattern.ANY, None, "*"),
        ("Topic:*", ResourceType.TOPIC, Pattern.ANY, None, "Topic:*"),
        ("topic:T", ResourceType.TOPIC, Pattern.LITERAL, "T", "Topic:T"),
        ("Group:g*", ResourceType.GROUP, Pattern.PREFIXED, "g", "Group:g*"),
        ("Group:a*b*", ResourceType.GROUP, Pattern.PREFIXED, "a", "Group:a*"),
        ("Group:a*b", ResourceType.GROUP, Pattern.LITERAL, "a*b", "Group:a*b"),
        ("Cluster:a:b", ResourceType.CLUSTER, Pattern.LITERAL, "a:b", "Cluster:a:b"),
        ("Topic", ResourceType.TOPIC, Pattern.LITERAL, "", "Topic:"),
    ],
)
def test_a_resource_is_read_as_upstream_does(
    text: str, kind: ResourceType, pattern: Pattern, name: str | None, again: str
) -> None:
    found = Resource.of(text)
    assert found == Resource(resource_type=kind, resource_pattern=pattern, resource_name=name)
    assert found is not None
    assert found.text == again


@pytest.mark.parametrize("text", [None, "", " ", "Queue:T", "T"])
def test_what_names_no_kind_of_resource_is_none(text: str | None) -> None:
    assert Resource.of(text) is None


@pytest.mark.parametrize(("text", "name"), [("User:u", "u"), ("user:a:b", "a:b"), ("User", ""), ("Group:g", None)])
def test_a_subject_is_a_user(text: str, name: str | None) -> None:
    found = Subject.of(text)
    assert (found and found.username) == name


names = st.text("abT%_*:-", max_size=6)
resources = st.builds(
    Resource,
    resource_type=st.sampled_from(
        [ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.NAMESPACE]
    ),
    resource_pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    resource_name=st.text("abT%_-", min_size=1, max_size=6),
)
entries = st.builds(
    PolicyEntry,
    actions=st.lists(st.sampled_from(Action), min_size=1, max_size=3, unique=True),
    decision=st.sampled_from(PolicyDecision),
    environment=st.builds(Environment, source_ips=st.none() | st.just(["10.0.0.1"])),
    resource=resources,
)
policies = st.builds(Policy, entries=st.lists(entries, min_size=1), policy_type=st.sampled_from(PolicyType))


@given(st.lists(policies, min_size=1, max_size=3))
def test_words_say_all_that_is_stored(stored: list[Policy]) -> None:
    acl = Acl(subject=Subject(subject_type=SUBJECT_USER, username="u"), policies=stored)
    assert policies_of(acl.info()) == stored
    assert msgspec.json.decode(msgspec.json.encode(acl), type=Acl) == acl


@given(st.sampled_from(UserType), st.sampled_from(UserStatus), names)
def test_words_say_all_of_a_user(kind: UserType, status: UserStatus, name: str) -> None:
    user = User(username=name, password="p", subject_type=SUBJECT_USER, user_type=kind, user_status=status)
    assert User.of(user.info()) == user


GOOD = AuthEntry("Topic:T", ["Pub"], None, "Allow")


@pytest.mark.parametrize(
    ("entry", "remark"),
    [
        (AuthEntry("Queue:T", ["Pub"], None, "Allow"), "The resource is null."),
        (AuthEntry("Topic:T", [], None, "Allow"), "The actions is empty."),
        (AuthEntry("Topic:T", ["Fly"], None, "Allow"), "The actions is empty."),
        (AuthEntry("Topic:T", ["Any"], None, "Allow"), "The actions can not be Any."),
        (AuthEntry("Topic:T", ["Pub"], [" "], "Allow"), "The source ip is empty."),
        (AuthEntry("Topic:T", ["Pub"], ["*"], "Allow"), "The source ip is invalid."),
        (AuthEntry("Topic:T", ["Pub"], None, "May be"), "The decision is null or illegal."),
    ],
)
def test_policies_that_can_not_be_kept_are_refused(entry: AuthEntry, remark: str) -> None:
    found = policies_of(AuthAcl("User:u", [AuthPolicy("Custom", [GOOD, entry])]))
    with pytest.raises(BrokerError) as caught:
        check_policies(found)
    assert (caught.value.code, caught.value.remark) == (16, remark)


def test_policies_without_entries_are_left_out() -> None:
    found = policies_of(AuthAcl("User:u", [AuthPolicy("Custom", []), AuthPolicy(None, [GOOD])]))
    assert [policy.policy_type for policy in found] == [PolicyType.CUSTOM]
    check_policies(found)
    with pytest.raises(BrokerError, match="The policies is empty"):
        check_policies([])


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8", "10.1.2.3/8", "::1", "2001:db8::/32"])
def test_addresses_and_networks(text: str) -> None:
    assert is_address_or_network(text)


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.0/33", "::/129", "host", "10.0.0.*"])
def test_what_is_neither(text: str) -> None:
    assert not is_address_or_network(text)
