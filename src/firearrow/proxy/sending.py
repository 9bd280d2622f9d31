from firearrow.proxy.messages import *
from firearrow.message import properties as P


def sys_flag_of(m):
    return (1 if m.system_properties.body_encoding == 2 else 0) | (4 if m.system_properties.message_type == 4 else 0)


def check_type(topic, kind, m):
    pass


def queue_for(key, n):
    return hash(key) % n


def properties_of(m, address, config):
    s = m.system_properties
    d = dict(m.user_properties)
    if s.tag:
        d["TAGS"] = s.tag
    if s.keys:
        d["KEYS"] = " ".join(s.keys)
    d["UNIQ_KEY"] = s.message_id
    if s.message_type == 4:
        d["TRAN_MSG"] = "true"
    d["PGROUP"] = m.topic.name
    if s.HasField("delivery_timestamp"):
        d["TIMER_DELIVER_MS"] = str(s.delivery_timestamp.ToMilliseconds())
    if s.message_group:
        d["__SHARDINGKEY"] = s.message_group
    return P.format(d)
