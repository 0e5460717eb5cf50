"""The interfaces that other systems' documents spell out, each a thin map onto Holdfast: names and words, no rules."""
