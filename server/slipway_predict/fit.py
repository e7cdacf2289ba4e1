"""How long a batch of so many rows takes: t0 + a*rows, fitted at warm-up and on each batch after it (pure)."""

from dataclasses import dataclass

FORGETTING = 0.97  # factor on a batch's weight at each later batch: the newest batches count most
SLACK = 1.3  # a request is refused when the prediction is above its time by this factor: the fit is a mean
_RIDGE = 1e-9


@dataclass(slots=True)
class ServiceTime:
    """Weighted least squares over (rows, seconds). Before the first batch it predicts 0: nothing is refused."""

    _n: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Add the rows of a batch, and the seconds that the model computed it."""
        kept = FORGETTING
        self._n = self._n * kept + 1.0
        self._x = self._x * kept + rows
        self._y = self._y * kept + seconds
        self._xx = self._xx * kept + float(rows) * rows
        self._xy = self._xy * kept + rows * seconds

    @property
    def slope_s(self) -> float:
        """Seconds for each row."""
        spread = self._n * self._xx - self._x * self._x
        if spread <= _RIDGE * max(1.0, self._xx):
            return 0.0  # all batches had one size: nothing is known of the slope
        return max(0.0, (self._n * self._xy - self._x * self._y) / spread)

    @property
    def fixed_s(self) -> float:
        """Seconds that each batch takes whatever its number of rows."""
        return max(0.0, (self._y - self.slope_s * self._x) / self._n) if self._n else 0.0

    def predict_s(self, rows: int) -> float:
        return self.fixed_s + self.slope_s * rows

    def wait_s(self, rows_ahead: int, batches_ahead: int) -> float:
        """Seconds to compute the rows that wait, in `batches_ahead` batches."""
        return batches_ahead * self.fixed_s + rows_ahead * self.slope_s

    def misses(self, rows: int, rows_ahead: int, batches_ahead: int, left_s: float) -> bool:
        """Whether a request with `left_s` seconds left is late, even if the fit is too high by the factor SLACK."""
        return self.wait_s(rows_ahead, batches_ahead) + self.predict_s(rows) > left_s * SLACK
