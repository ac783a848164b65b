package config

import "strings"

// didYouMean returns list, which has the names in words, after a suggestion if text misspells one.
func didYouMean(text string, names []string, list string) string {
	if name := Nearest(text, names); name != "" {
		return "did you mean " + name + "? " + strings.ToUpper(list[:1]) + list[1:]
	}
	return list
}

// Nearest returns the name that text is a misspelling of, or "". At most a third of the letters
// differ.
func Nearest(text string, names []string) string {
	best, least := "", 0
	for _, name := range names {
		longer := max(len(text), len(name))
		if text == name || 3*(longer-min(len(text), len(name))) > longer {
			continue // text may be as long as the file
		}
		if d := distance(text, name); 3*d <= longer && (best == "" || d < least) {
			best, least = name, d
		}
	}
	return best
}

// distance returns how many bytes must be inserted, removed or replaced to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
