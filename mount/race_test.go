//go:build race

package mount

func init() { raceDetector = true }
