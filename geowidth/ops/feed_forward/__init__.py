"""The feed-forward layer of any width."""

from geowidth.ops.feed_forward.operation import explain, ffn

__all__ = ["explain", "ffn"]
