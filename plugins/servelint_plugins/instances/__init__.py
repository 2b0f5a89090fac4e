"""Instance types of clouds (``data``, a file each) and the labels of manifests that name hardware (``labels``).

Only data: `servelint_plugins.hardware` provides it, so that a run loads no further module for it.

Left out, and why: slices of a device (AWS G6f, Azure NV6 to NV18 A10, quarter cards of G4 and of Azure NC RTX PRO
6000 v6); types whose device has no datasheet here (AWS P3, G4ad, G5g, G7, Inf1; the V100 of 16 GB elsewhere); types
of which no source with figures was read (AWS P6e-GB200, Trn2u; Google G2 of 8, 16 and 32 CPUs; Lambda A100 of 40 GB
and 4 x B200).
"""
