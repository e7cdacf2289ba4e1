//! Hours, days and months of Unix time, in UTC. An hour is a number: the hours since the epoch.

const DAY_HOURS: i64 = 24;

/// The hour of a time in seconds.
pub fn hour_of(unix_s: f64) -> i64 {
    (unix_s / 3600.0).floor() as i64
}

/// The hour in which the day of this hour begins.
pub fn day_begin(hour: i64) -> i64 {
    hour - hour.rem_euclid(DAY_HOURS)
}

/// The hour in which the month of this hour begins.
pub fn month_begin(hour: i64) -> i64 {
    let day = hour.div_euclid(DAY_HOURS);
    (day - day_of_month(day)) * DAY_HOURS
}

/// The number of a day in its month, from 0. `day`: days since the epoch.
fn day_of_month(day: i64) -> i64 {
    // Years begin in March here, so that the day of a leap year is the last one.
    let shifted = day + 719_468;
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    day_of_year - (153 * month + 2) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_begin_where_the_calendar_has_it() {
        let hour = hour_of(1_709_164_800.0); // 2024-02-29T00:00:00Z
        assert_eq!((day_begin(hour + 23), month_begin(hour)), (hour, hour - 28 * 24));
        assert_eq!(month_begin(hour + 24), hour + 24);
        assert_eq!((day_begin(-1), month_begin(0), month_begin(-1)), (-24, 0, -31 * 24));
    }
}
