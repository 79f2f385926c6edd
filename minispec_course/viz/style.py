"""How every figure of the course looks: at home on a light page as on a dark one, and clear to colour-blind eyes."""

import plotly.graph_objects as go

GREY, GRID = "#7f8c9a", "rgba(128,128,128,.3)"
TEXT = "#6b7784"  # 4.6:1 on white, 4.1:1 on JupyterLab's black; a panel's page replaces it by a colour of its own
# Okabe and Ito's palette, without its black and its yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
# How a token came about has the same colour everywhere.
KINDS = {"accepted": "#009e73", "corrected": "#d55e00", "bonus": "#56b4e9"}  # not the target's blue

_AXIS = dict(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, automargin=True, title=dict(standoff=8))

TEMPLATE = go.layout.Template(
    layout=dict(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font=dict(color=TEXT, size=13),
        colorway=PALETTE,
        margin=dict(l=60, r=20, t=60, b=50),
        height=400,
        title=dict(x=0, xanchor="left", font=dict(size=15)),
        legend=dict(bgcolor="rgba(0,0,0,0)"),
        xaxis=_AXIS,
        yaxis=_AXIS,
    )
)
