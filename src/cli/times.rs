//! Times as people write and read them: RFC 3339, or milliseconds since 1970.

use crate::base::clock::Calendar;

/// Milliseconds since 1970 of an RFC 3339 time such as `2026-11-29T16:40:05.123+01:00`. A space
/// may stand for the `T`.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    if !matches!(text.as_bytes()[10], b'T' | b't' | b' ') {
        return None;
    }
    let [year, month, day] = digits(date, b'-', [4, 2, 2])?;
    let [hour, minute, second] = digits(rest.get(..8)?, b':', [2, 2, 2])?;
    let (millis, zone) = fraction(&rest[8..])?;
    let in_range = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some((seconds - zone_seconds(zone)?) * 1000 + millis)
}

/// The same time in UTC with milliseconds.
pub fn format_rfc3339(ms: i64) -> String {
    let c = Calendar::utc(ms);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        c.year, c.month, c.day, c.hour, c.minute, c.second, c.millis
    )
}

/// Numbers of fixed widths with one separator between them.
fn digits(text: &str, separator: u8, widths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(char::from(separator));
    let mut numbers = [0; 3];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Milliseconds of an optional fraction, and what stands behind it.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let len = rest.bytes().take_while(u8::is_ascii_digit).count();
    let millis = format!("{:0<3}", &rest[..len]);
    (len > 0).then(|| Some((millis[..3].parse().ok()?, &rest[len..])))?
}

/// Seconds to the east of UTC.
fn zone_seconds(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first()? {
        b'Z' | b'z' if zone.len() == 1 => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let [hours, minutes, _] = digits(&format!("{}:00", &zone[1..]), b':', [2, 2, 2])?;
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970 to a day of the Gregorian calendar, counted in years that begin in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_times_are_read_in_every_form() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2024-02-29T23:59:59.999z", 1_709_251_199_999),
            ("2024-03-01 00:00:00Z", 1_709_251_200_000),
            ("2024-03-01T02:30:00.5+02:30", 1_709_251_200_500),
            ("2024-02-29T19:00:00.123456-05:00", 1_709_251_200_123),
        ] {
            assert_eq!(parse_rfc3339(text), Some(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2024",
            "2024-03-01",
            "2024-03-01T00:00:00",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-03-01T24:00:00Z",
            "2024-03-01T00:00:00.Z",
            "2024-03-01T00:00:00+1:00",
            "2024-03-01T00:00:00ZZ",
            "2024-03-01Tü0:00:00Z",
            "+024-03-01T00:00:00Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn a_formatted_time_is_read_back() {
        for ms in [
            0,
            -86_400_000,
            951_782_400_001,
            1_795_970_405_123,
            4_107_542_399_999,
        ] {
            assert_eq!(parse_rfc3339(&format_rfc3339(ms)), Some(ms), "{ms}");
        }
    }
}
