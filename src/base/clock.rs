//! Wall-clock time as RocketMQ writes it. Monotonic time is `std::time::Instant`, passed as an
//! argument wherever a test may want to move it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, 0 if the clock stands before it.
pub fn wall_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}

/// A point in time, cut into calendar fields in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub year: i64,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    pub millis: u32,
}

impl Calendar {
    /// The fields of `ms` milliseconds since 1970 in UTC.
    pub fn utc(ms: i64) -> Calendar {
        let (days, rest) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
        let (year, month, day) = civil_from_days(days);
        let rest = rest as u32;
        Calendar {
            year,
            month,
            day,
            hour: rest / 3_600_000,
            minute: rest / 60_000 % 60,
            second: rest / 1000 % 60,
            millis: rest % 1000,
        }
    }
}

/// Days since 1970 to year, month, day in the Gregorian calendar. The year is counted from
/// March, so that the leap day is the last one; 146,097 days make 400 years.
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468; // days since 0000-03-01
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_fields_are_right_around_leap_days() {
        for (ms, want) in [
            (0, (1970, 1, 1, 0)),
            (951_782_400_000, (2000, 2, 29, 0)),
            (1_709_251_199_999, (2024, 2, 29, 23)),
            (1_709_251_200_000, (2024, 3, 1, 0)),
            (-1, (1969, 12, 31, 23)),
        ] {
            let c = Calendar::utc(ms);
            assert_eq!((c.year, c.month, c.day, c.hour), want, "{ms}");
        }
    }
}
