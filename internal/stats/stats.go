// Package stats contains the common parts of observers: series by names and labels, the state
// of servers, and the numbers in a backend's Stats, which Counts guards.
package stats

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Number is one number.
type Number struct {
	Field string // name of the struct's field
	Name  string // name in JSON
	Gauge bool   // it may fall: a bool, or a field with the tag `metric:"gauge"`
	Named bool   // it is a value of a map
	Key   string // its key in that map
	Value int64  // 1 for true
}

// Numbers returns the numbers in s, a struct: its fields that are integers or bools, or maps of
// these by strings, and have a name in JSON. It leaves out other fields. If empty is true,
// an empty map has one Number, without a Key. If s is no struct, it panics with a text that begins
// with caller.
func Numbers(caller string, s any, empty bool) []Number {
	var numbers []Number
	v := reflect.ValueOf(s)
	if v.Kind() != reflect.Struct {
		panic(fmt.Sprintf("%s: the function returns a %T; it must return a struct, such as what a backend's Stats returns", caller, s))
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		n := Number{Field: f.Name, Gauge: f.Tag.Get("metric") == "gauge"}
		n.Name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		if n.Named = kind.Kind() == reflect.Map; n.Named {
			kind = kind.Elem()
		}
		n.Gauge = n.Gauge || kind.Kind() == reflect.Bool
		isInt := reflect.Int <= kind.Kind() && kind.Kind() <= reflect.Int64
		if n.Name == "" || !isInt && kind.Kind() != reflect.Bool {
			continue
		}
		if !n.Named {
			n.Value = number(v.Field(i))
			numbers = append(numbers, n)
			continue
		}
		if empty && v.Field(i).Len() == 0 {
			numbers = append(numbers, n)
		}
		keys := v.Field(i).MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			n.Key, n.Value = key.String(), number(v.Field(i).MapIndex(key))
			numbers = append(numbers, n)
		}
	}
	return numbers
}

func number(v reflect.Value) int64 {
	if v.Kind() != reflect.Bool {
		return v.Int()
	}
	if v.Bool() {
		return 1
	}
	return 0
}
