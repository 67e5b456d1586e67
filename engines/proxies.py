"""Proxies that the environment names, which no request of a load takes."""

import urllib.parse
import urllib.request


def ignored_proxy(url: str) -> str | None:
    """The proxy that other programs would take to an address, without its password; None if they would take none."""
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    place = urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}")
    return place.netloc.rpartition("@")[2] or None
