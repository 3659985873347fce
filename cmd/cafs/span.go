package main

import (
	"math"
	"strconv"
	"strings"

	"cafs/linksys"
)

// parseSpan reads the bytes of --range as HTTP has them: A-B, both included, A-
// up to the end, or -N for the last N. Nothing is everything.
func parseSpan(text string) (r linksys.ByteRange, err error) {
	r.To = math.MaxInt64
	if text == "" {
		return r, nil
	}
	bad := usagef("--range %q is none of A-B, A- and -N", text)
	first, last, ok := strings.Cut(text, "-")
	if !ok || first == "" && last == "" {
		return r, bad
	}
	from, err1 := parseOffset(first)
	to, err2 := parseOffset(last)
	switch {
	case err1 != nil || err2 != nil:
		return r, bad
	case first == "":
		if to == 0 {
			return linksys.ByteRange{From: math.MaxInt64, To: math.MaxInt64}, nil
		}
		r.From = -to
	case last == "":
		r.From = from
	case to < from:
		return r, usagef("--range %s ends before it begins", text)
	default:
		r.From, r.To = from, to+1
	}
	return r, nil
}

// parseOffset reads a number of bytes that can be counted past; nothing is 0.
func parseOffset(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}

// parseEntityBytes reads A:B as the trustless gateway specification has it: both
// included, negative ones from the end, * for the end.
func parseEntityBytes(text string) (r linksys.ByteRange, err error) {
	bad := usagef("--entity-bytes %q is not of the form A:B", text)
	first, last, ok := strings.Cut(text, ":")
	if !ok {
		return r, bad
	}
	if r.From, err = strconv.ParseInt(first, 10, 63); err != nil {
		return r, bad
	}
	if last == "*" {
		r.To = math.MaxInt64
		return r, nil
	}
	to, err := strconv.ParseInt(last, 10, 63)
	switch {
	case err != nil:
		return r, bad
	case to < r.From && (to < 0) == (r.From < 0):
		return r, usagef("--entity-bytes %s ends before it begins", text)
	case to == -1:
		r.To = math.MaxInt64 // the last byte included
	default:
		r.To = to + 1
	}
	return r, nil
}
