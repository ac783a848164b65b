package division
import "os"
var trace = os.Getenv("TRACE") != ""
