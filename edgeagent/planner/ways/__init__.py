"""Ways: many weighted trees along which one vector of gradients is summed and spread.

One tree leaves most links idle. A plan of ways cuts the vector into parts, and each part climbs to
a root and spreads from there along trees of its own, so that all links carry their share. The
modules make such plans from a `Network` of measured rates; nothing here does I/O, and equal
arguments give equal plans.
"""
