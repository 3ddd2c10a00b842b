"""The picture of a trade-off shows the curve, the limit asked for and its price."""

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.report import trade_off


def curve(name="heat", **changes):
    limits = np.linspace(0, 4, 9)
    given = {
        "limits": limits,
        "values": np.minimum(limits, 2.0),
        "multipliers": np.r_[1e9, (limits < 2)[1:].astype(float)],
        "limit": 1.0,
        "value": 1.0,
        "multiplier": 1.0,
    }
    return trade_off.Curve(name=name, **(given | changes))


def test_each_constraint_has_a_panel_of_returns_and_one_of_prices():
    picture = trade_off.figure([curve(), curve("wear")], "a problem")
    assert len(picture.axes) == 4
    above, _, below, other = picture.axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), curve().values)
    np.testing.assert_array_equal(below.lines[0].get_xdata(), curve().limits)
    assert (below.get_xlabel(), other.get_xlabel()) == ("limit of heat", "limit of wear")
    assert "one more unit is worth 1" in above.texts[0].get_text()
    # The endless price at the least feasible limit does not set the scale.
    assert 1 < below.get_ylim()[1] < 2


def test_the_tangent_has_the_price_as_its_slope():
    tangent = trade_off.figure([curve(multiplier=0.5)], "a problem").axes[0].lines[1]
    across, up = (np.ptp(np.asarray(data, dtype=float)) for data in tangent.get_data())
    assert up / across == pytest.approx(0.5)


def test_a_free_constraint_is_drawn_too():
    free = curve(multipliers=np.zeros(9), multiplier=0.0)
    assert trade_off.figure([free], "slack").axes[1].get_ylim() == (0, 1)


def test_no_constraint_is_no_picture():
    with pytest.raises(InvalidInput, match="no trade-off"):
        trade_off.figure([], "nothing")
