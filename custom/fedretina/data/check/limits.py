"""From where on an image is odd, whatever site it comes from."""

from __future__ import annotations

# Set on 8,801 images of four public sets, one of them with equalised colours, so that few of them are called odd:
# there luminance reaches from 19 to 208 (and one strip without a retina at 7), chroma from 4.8 (1.3), spread from 3.3,
# the burnt share to 0.14, blue to 1.21 times red.
DARK, BRIGHT, BURNT = 20.0, 200.0, 0.2
GREY, BLANK, BLUE = 3.0, 1.0, 1.25
COLOURED = 10.0  # chroma of an OCT scan; grey scans that were saved as colour JPEG stay below 2
