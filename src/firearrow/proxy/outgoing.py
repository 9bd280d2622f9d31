from firearrow.proxy.messages import Message
import hashlib
from firearrow.proxy.times import timestamp_of


def message_of(v, topic="", receipt="", times=0):
    p = v.properties
    m = Message()
    m.topic.name = topic or v.topic
    m.body = v.body
    s = m.system_properties
    if "TAGS" in p:
        s.tag = p["TAGS"]
    s.keys.extend(p.get("KEYS", "").split())
    s.message_id = p.get("UNIQ_KEY", "")
    s.body_digest.type = 2
    s.body_digest.checksum = hashlib.md5(v.body).hexdigest().upper()
    s.body_encoding = 1
    s.message_type = 1
    s.born_timestamp.CopyFrom(timestamp_of(v.born_timestamp_ms))
    s.store_timestamp.CopyFrom(timestamp_of(v.store_timestamp_ms))
    s.born_host = str(v.born_host)
    s.store_host = str(v.store_host)
    s.receipt_handle = receipt
    s.queue_id = v.queue_id
    s.queue_offset = v.queue_offset
    s.delivery_attempt = times + 1
    for k in ("x",):
        if k in p:
            m.user_properties[k] = p[k]
    return m
