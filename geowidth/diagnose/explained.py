"""How much of what width does to the loss the power law explains, apart from the noise of single trainings."""

import math

from scipy import stats


def explained_share(gain, lack, noise, freedom, pure, confidence=0.95):
    """(share, interval): the squares that the law explains over those that free means explain.

    gain: squares of the means of the seeds explained by the law; lack: explained by free means beyond it. noise:
    variance of one loss, from `pure` degrees of freedom, or None if nothing shows it. freedom: squares, over the noise,
    that noise alone would put into (gain, lack).

    Noise adds to both, so the share of a law that is right lies below 1, and that of widths that do nothing far above
    0. The interval is for the share without noise: of signal in the gain and in the lack, each bounded at
    1 - (1 - confidence) / 2. It begins at 0 where no effect of width stands out, and then nothing can be said. None
    where the noise is unknown; both None where all is 0.
    """
    if gain + lack <= 0:
        return None, None
    share = gain / (gain + lack)
    if noise is None:
        return share, None
    if noise == 0:
        return share, (share, share)
    reach = float(stats.t.ppf(1 - (1 - confidence) / 4, pure))
    gain_low, gain_high = _signal(gain / noise, freedom[0], reach)
    lack_low, lack_high = _signal(lack / noise, freedom[1], reach)
    low = gain_low / (gain_low + lack_high) if gain_low > 0 else 0.0
    high = gain_high / (gain_high + lack_low) if gain_high > 0 else 0.0
    return share, (min(low, share), max(high, share))


def _signal(squares, freedom, reach):
    """Bounds of the noncentrality of a chi-square of so many degrees of freedom that came out as `squares`.

    sqrt(squares - (freedom - 1) / 2) is nearly normal with variance 1 around the same of its noncentrality + freedom.
    """
    half = max(0.0, (freedom - 1) / 2)
    centre = math.sqrt(max(0.0, squares - half))
    low, high = max(0.0, centre - reach), centre + reach
    return tuple(max(0.0, bound**2 - half) for bound in (low, high))
