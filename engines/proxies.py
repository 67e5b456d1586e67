"""Proxies that the environment names, which no request of a load takes."""

import urllib.parse
import urllib.request


def ignored_proxy(url: str) -> str | None:
    """The proxy that other programs would take to an address, without its password; None if they would take none."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    try:
        place = urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}")
    except ValueError:
        return "of the environment, which is no address,"
    return place.netloc.rpartition("@")[2] or None
