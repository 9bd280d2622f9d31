"""How the options of a source or sink say that brokers are to be talked to."""

from __future__ import annotations

from firearrow.client.routes import Cluster
from firearrow.errors import ConfigError
from firearrow.net.access import Access as NetAccess
from firearrow.net.access import Tls
from firearrow.net.blocking import BlockingClient
from firearrow.spark.options import Access, Location
from firearrow.wire.signature import Credentials


def access_of(options: Access) -> NetAccess:
    """Signature and encryption; ConfigError where one half of a pair is missing."""
    credentials = None
    if options.access_key is not None or options.secret_key is not None:
        if options.access_key is None or options.secret_key is None:
            missing = "accessKey" if options.access_key is None else "secretKey"
            raise ConfigError(f"option {missing} is missing: accessKey and secretKey go together")
        credentials = Credentials(options.access_key, options.secret_key, options.security_token or "")
    tls = None
    if options.tls:
        tls = Tls(options.tls_ca, options.tls_certificate, options.tls_key, verify=options.tls_verify)
    return NetAccess(credentials, tls)


def cluster_of(place: Location, options: Access) -> Cluster:
    """The cluster that the option ``nameServer`` names, by a client of its own."""
    client = BlockingClient(access_of(options), timeout_seconds=options.timeout_ms / 1000)
    return Cluster(client, place.name_servers)
